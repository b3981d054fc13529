"""Time. Nothing else in agentloop reads a clock.

`WallClock` is real time. `VirtualClock` belongs to a `VirtualLoop`, which jumps to the next timer
when nothing is ready. Both give seconds as floats.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Protocol, TypeVar

from agentloop.errors import ConfigError, Deadlock

T = TypeVar("T")

_VIRTUAL_EPOCH_S = 1_735_689_600.0  # 2025-01-01T00:00:00Z, so that virtual runs repeat exactly
_SLEEP_S_MIN = 0.001  # uvloop rounds shorter timers to zero: sleeping them would spin
_SOCKET_WAIT_S = 0.001
_SOCKET_WAITS_MAX = 1_000
_TASKS_SHOWN_MAX = 20


class Clock(Protocol):
    """What the rest of agentloop may ask of time."""

    is_virtual: bool

    def now(self) -> float:
        """Monotonic seconds."""

    def timestamp(self) -> float:
        """Seconds since 1970, for what people and the wire read."""

    async def sleep(self, delay_s: float) -> None:
        """Wait; returns at once for a delay of zero or less."""

    def call_at(self, when_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back at `when_s`, or soon where that has passed.

        A wall clock's timer may fire up to a millisecond early: look at `now()` again.
        """


class WallClock:
    """Real time, at the operating system's full resolution.

    Not `loop.time()`: uvloop's is in whole milliseconds and stands still within an iteration.
    """

    is_virtual = False

    def now(self) -> float:
        return time.monotonic()

    def timestamp(self) -> float:
        return time.time()

    async def sleep(self, delay_s: float) -> None:
        """Never shorter than asked, and up to a timer's resolution longer."""
        end_s = self.now() + delay_s
        while (left_s := end_s - self.now()) > 0:  # noqa: ASYNC110 (timers may fire early)
            await asyncio.sleep(max(left_s, _SLEEP_S_MIN))

    def call_at(self, when_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """May fire early by the loop's timer resolution (uvloop: 1 ms): ask `now()` again and,
        where it is too early, call again."""
        return asyncio.get_running_loop().call_later(max(0.0, when_s - self.now()), callback)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 and passes only when there is nothing else to do.

    Real sockets work: they are polled before time moves. Threads don't: the loop can't know that
    one of them is about to report, so an executor is refused. Timers are exact for half a year;
    after that a float of seconds no longer holds asyncio's nanosecond.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now_s

    def advance(self, delay_s: float) -> None:
        """Let time pass."""
        self._now_s += delay_s

    def run_in_executor(
        self, executor: object, func: Callable[..., object], *args: object
    ) -> NoReturn:
        name = getattr(func, "__qualname__", repr(func))
        raise ConfigError(f"virtual time runs no threads, so {name} can't go to an executor")


class _JumpingSelector(selectors.DefaultSelector):
    """Polls without waiting, and lets virtual time pass where a real selector would block."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        has_sockets = len(self.get_map()) > 1  # the loop's own wake-up pipe is always there
        if has_sockets:
            os.sched_yield()  # the kernel may still be carrying bytes across the loopback
            if ready := super().select(0):
                return ready
        if timeout is not None:
            self._loop.advance(timeout)
            return []
        for _ in range(_SOCKET_WAITS_MAX if has_sockets else 0):
            if ready := super().select(_SOCKET_WAIT_S):
                return ready
        raise Deadlock(_describe_deadlock(self._loop))


def _describe_deadlock(loop: asyncio.AbstractEventLoop) -> str:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    lines = [f"nothing is ready and no timer is set; waiting tasks: {len(tasks)}"]
    lines += [f"  {task.get_name()}: {_place(task)}" for task in tasks[:_TASKS_SHOWN_MAX]]
    if len(tasks) > _TASKS_SHOWN_MAX:
        lines.append(f"  and {len(tasks) - _TASKS_SHOWN_MAX} more")
    return "\n".join(lines)


def _place(task: asyncio.Task[Any]) -> str:
    """The chain of coroutines that a task waits in, outermost first."""
    places = []
    coroutine: Any = task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        file_name = os.path.basename(frame.f_code.co_filename)
        places.append(f"{frame.f_code.co_qualname} ({file_name}:{frame.f_lineno})")
        coroutine = coroutine.cr_await
    return " > ".join(places)


class VirtualClock:
    """The time of a `VirtualLoop`: starts at 0 and jumps."""

    is_virtual = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    def timestamp(self) -> float:
        return _VIRTUAL_EPOCH_S + self.now()

    async def sleep(self, delay_s: float) -> None:
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_at(when_s, callback)


def run_virtual(main: Callable[[Clock], Coroutine[Any, Any, T]], *, debug: bool = False) -> T:
    """Run `main(clock)` to its end in virtual time, cancel what it left running, and return its
    result. Its exceptions come out as they are.

    Raises:
        Deadlock: everything waits and no timer is set. The message names the waiting tasks.
    """
    with asyncio.Runner(debug=debug, loop_factory=VirtualLoop) as runner:
        return runner.run(main(VirtualClock(runner.get_loop())))
