"""The simulated engine: a scheduler, a clock and the one timer between them.

Deadlines are absolute. A wake delivers every step that is due by `clock.now()`, so a timer that
was late delays what it delivers and shifts nothing after it. Where something is due at once, as
always with the `instant` profile, the wake is a callback of the loop and no timer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentloop.engine.sim.job import Job
from agentloop.engine.sim.scheduler import BURST_STEPS, Due, Scheduler
from agentloop.engine.sim.timing import NS_PER_MS, NS_PER_S, step_ms
from agentloop.errors import EngineFault

if TYPE_CHECKING:
    from agentloop.clock import Clock
    from agentloop.engine.api import Finish, GenRequest, Sink
    from agentloop.engine.sim.profiles import Profile

# uvloop rounds timers to the nearest millisecond, and one that is early must wait again, which
# below half a millisecond is a spin: half a millisecond more, and few are early, none spins.
_ROUND_UP_NS = 500_000
# A float near a deadline may fall short of it; a timer set for it again would never move on.
_SLACK_NS = 1_000
# What one wake may deliver before others on the loop have their turn, about a millisecond.
_WAKE_STEPS_MAX = 1_024
_LATE_STEPS = 2
_LATE_NS_MIN = 2 * NS_PER_MS  # less is a timer's resolution


class SimGeneration:
    """A running request of the simulated engine."""

    __slots__ = ("_engine", "_job")

    def __init__(self, engine: SimEngine, job: Job) -> None:
        self._engine = engine
        self._job = job

    def cancel(self) -> None:
        """Stop at the next step boundary. Idempotent."""
        self._engine.cancel(self._job)


class SimEngine:
    """One replica of a profile. All of it runs in the event loop's thread.

    Attributes:
        wake_count: how often its timer has fired.
        late_wake_count: how often more than two steps (and 2 ms) late. Where that is more than
            one wake in a hundred, the machine was too slow for the profile.
    """

    def __init__(self, profile: Profile, clock: Clock) -> None:
        self.wake_count = 0
        self.late_wake_count = 0
        self._clock = clock
        self._origin_s = clock.now()
        self._scheduler = Scheduler(profile)
        self._sinks: dict[Job, Sink] = {}
        self._wakeup: asyncio.Handle | None = None
        self._wakeup_ns = 0
        self._round_up_ns = 0 if clock.is_virtual else _ROUND_UP_NS
        late_ns = round(_LATE_STEPS * step_ms(profile, 0) * NS_PER_MS)
        self._late_ns = max(late_ns, _LATE_NS_MIN)
        self._is_closed = False

    def submit(self, request: GenRequest, sink: Sink) -> SimGeneration:
        """Start a generation.

        Raises:
            PrefixLost: `request.prefix` is no longer held.
            EngineFault: the prompt is empty (`empty_prompt`) or too long
                (`context_length_exceeded`), the queue is full (`overloaded`, retryable), or the
                engine is closed (`engine_closed`).
        """
        if self._is_closed:
            raise EngineFault("the engine is closed", code="engine_closed", is_retryable=False)
        now_ns = self._now_ns()
        job = self._scheduler.submit(request, now_ns)
        self._sinks[job] = sink
        self._arm(now_ns)
        return SimGeneration(self, job)

    def cancel(self, job: Job) -> None:
        """What `SimGeneration.cancel` does."""
        now_ns = self._now_ns()
        self._scheduler.cancel(job, now_ns)
        self._arm(now_ns)

    def lose_prefixes(self) -> None:
        """Fault injection: evict every prefix that no running generation uses."""
        self._scheduler.lose_prefixes()

    def kill(self) -> None:
        """Fault injection: the replica dies and another takes its place, with nothing held.

        What ran or waited finishes with the retryable error `replica_lost`.
        """
        now_ns = self._now_ns()
        self._scheduler.kill(now_ns)
        self._arm(now_ns)

    async def close(self) -> None:
        """Cancel everything, deliver each finish, and take no more."""
        self._is_closed = True
        now_ns = self._now_ns()
        self._scheduler.cancel_all(now_ns)
        while (due := self._scheduler.pull(now_ns)) is not None:
            self._deliver(due)
        self._arm(now_ns)

    def _now_ns(self) -> int:
        return round((self._clock.now() - self._origin_s) * NS_PER_S)

    def _arm(self, now_ns: int) -> None:
        """Have exactly one wake-up, at the next deadline; none where nothing is due."""
        due_ns = self._scheduler.next_due_ns()
        if self._wakeup is not None:
            if due_ns is not None and self._wakeup_ns <= due_ns:
                return
            self._wakeup.cancel()
            self._wakeup = None
        if due_ns is None:
            return
        self._wakeup_ns = due_ns
        if due_ns <= now_ns:
            self._wakeup = asyncio.get_running_loop().call_soon(self._wake)
        else:
            when_s = self._origin_s + (due_ns + self._round_up_ns) / NS_PER_S
            self._wakeup = self._clock.call_at(when_s, self._wake_by_timer)

    def _wake_by_timer(self) -> None:
        self.wake_count += 1
        self.late_wake_count += self._now_ns() - self._wakeup_ns > self._late_ns
        self._wake()

    def _wake(self) -> None:
        self._wakeup = None
        until_ns = self._now_ns() + _SLACK_NS
        scheduler = self._scheduler
        steps_left = min(BURST_STEPS * max(1, scheduler.running), _WAKE_STEPS_MAX)
        while steps_left > 0 and (due := scheduler.pull(until_ns)) is not None:
            self._deliver(due)
            steps_left -= max(1, len(due.sizes))
        self._arm(until_ns)

    def _deliver(self, due: Due) -> None:
        job = due.job
        if due.finish is not None:
            self._tell(job, self._sinks.pop(job), due.finish)
            return
        try:
            self._sinks[job].on_steps(due.ids, due.sizes)
        except Exception as failure:
            self._report(job, failure)
            self._scheduler.cancel(job, self._now_ns())

    def _tell(self, job: Job, sink: Sink, finish: Finish) -> None:
        try:
            sink.on_finish(finish)
        except Exception as failure:
            self._report(job, failure)

    def _report(self, job: Job, failure: Exception) -> None:
        """A sink that raises breaks a promise; only its own generation may suffer."""
        context = {"message": f"the sink of {job.id} raised", "exception": failure}
        asyncio.get_running_loop().call_exception_handler(context)
