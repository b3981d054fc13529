"""Every Response ends, and gives everything back: links that vanish, bugs, cancellation, bounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import nextafter

import pytest

from agentloop.behaviors.api import Turn
from agentloop.clock import Clock, run_virtual
from agentloop.core.calls import Call
from agentloop.core.states import State
from agentloop.engine.api import GenRequest, Script, Sink, Stall
from agentloop.engine.sim.profiles import GPU65
from agentloop.engine.sim.replica import SimGeneration
from agentloop.errors import Deadlock, UnknownResponse
from agentloop.loop.live import ENDED_MAX
from agentloop.loop.live_response import LiveResponse
from agentloop.tokens.render import SaidCall, SaidText
from agentloop.wire.requests import AgentLoopOptions
from tests.conformance.heard import said_again
from tests.loop.loop_kit import Ear, Kit, check_ended, run, script_of, user

LONG = script_of(SaidText("word " * 2_000))
CALL = script_of(SaidCall("shell", "{}"))
HOSTED_CALL = script_of(SaidCall("hosted", "{}"))
ABORT_S_MAX = 0.2


def always(script: Script) -> Callable[[Turn], Script]:
    return lambda turn: script


@pytest.mark.parametrize("after_s", [0.0, 0.03, 2.0], ids=["at once", "in prefill", "in decode"])
def test_vanished_client_stops_the_engine(after_s: float) -> None:
    async def main(kit: Kit) -> None:
        live, ear = kit.start(lambda turn: LONG)
        await kit.clock.sleep(after_s)
        vanished_s = kit.clock.now()
        live.leave(ear)
        assert live.response.state is State.INCOMPLETE
        await kit.clock.sleep(ABORT_S_MAX)
        for at_s, finish in kit.engine.finishes:
            assert finish.reason == "cancel"
            assert at_s - vanished_s <= ABORT_S_MAX
        assert len(kit.engine.finishes) == len(kit.engine.requests)
        steps = len(kit.engine.steps)
        await kit.clock.sleep(10.0)
        assert len(kit.engine.steps) == steps
        assert live.task is None

    run(main, GPU65)


def test_detachable_response_goes_on_without_its_client() -> None:
    async def main(kit: Kit) -> None:
        options = AgentLoopOptions(final="hold", detach_ttl_s=600.0)
        live, ear = kit.start(lambda turn: LONG, options=options)
        await kit.clock.sleep(2.0)
        live.leave(ear)
        heard = len(ear.said)
        await kit.clock.sleep(60.0)
        assert live.response.state is State.IDLE
        assert len(ear.said) == heard
        await kit.clock.sleep(600.0)
        assert not live.is_open
        assert live.task is None

    run(main, GPU65)


def test_cancelled_response_stops_its_hosted_tools() -> None:
    stopped: list[float] = []

    async def main(kit: Kit) -> None:
        async def answer(call: Call) -> str:
            try:
                await kit.clock.sleep(3600.0)
            finally:
                stopped.append(kit.clock.now())
            return "never"

        live, ear = kit.start(lambda turn: HOSTED_CALL, hosted=answer)
        await kit.clock.sleep(1.0)
        live.response.cancel()
        live.publish()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert stopped == [1.0]
        await kit.clock.sleep(1.0)
        check_ended(kit, live, ear)
        await kit.check_free()

    run(main)


def raise_bug(*_: object) -> Script:
    raise RuntimeError("a bug")


async def raise_bug_later(call: Call) -> str:
    raise RuntimeError("a bug")


class Buggy:
    def submit(self, request: GenRequest, sink: Sink) -> SimGeneration:
        raise RuntimeError("a bug")

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    "start",
    [
        lambda kit: kit.start(raise_bug),
        lambda kit: kit.start(lambda turn: HOSTED_CALL, hosted=raise_bug_later),
        lambda kit: kit.start(lambda turn: CALL, engine=Buggy()),
    ],
    ids=["behavior", "hosted tool", "engine"],
)
def test_bug_ends_the_response_instead_of_leaving_its_client_waiting(
    start: Callable[[Kit], tuple[LiveResponse, Ear]], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(kit: Kit) -> None:
        live, ear = start(kit)
        end = await ear.wait_stop()
        assert end["type"] == "response.failed"
        assert end["response"]["error"]["code"] == "server_error"
        assert "a bug" not in end["response"]["error"]["message"]
        await asyncio.sleep(0)
        check_ended(kit, live, ear)
        await kit.check_free()

    run(main)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "a bug" in (caplog.records[0].exc_text or "")


def test_bug_in_a_later_turn_ends_the_response(caplog: pytest.LogCaptureFixture) -> None:
    async def main(kit: Kit) -> None:
        live, ear = kit.start(lambda turn: raise_bug() if turn.number else CALL)
        await ear.wait_stop()
        kit.answer_all(live)
        assert (await ear.wait_stop())["type"] == "response.failed"
        await asyncio.sleep(0)
        check_ended(kit, live, ear)

    run(main)


@pytest.mark.parametrize("script", [LONG, CALL, HOSTED_CALL], ids=["text", "call", "hosted call"])
def test_cancellation_passes(script: Script) -> None:
    async def main(kit: Kit) -> None:
        async def answer(call: Call) -> str:
            await kit.clock.sleep(3600.0)
            return ""

        live, _ = kit.start(lambda turn: script, hosted=answer)
        await kit.clock.sleep(1.0)
        task = live.task
        assert task is not None
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(main, GPU65)


def test_ended_responses_are_kept_for_a_while() -> None:
    async def main(kit: Kit) -> None:
        options = AgentLoopOptions(final="complete")
        for _ in range(ENDED_MAX + 5):
            _, ear = kit.start(lambda turn: script_of(SaidText("x")), options=options)
            await ear.wait_stop()
        await asyncio.sleep(0)
        assert said_again(kit.live, f"resp_{ENDED_MAX + 5}")
        assert said_again(kit.live, "resp_6")
        assert list(kit.live) == []
        for gone in range(1, 6):
            with pytest.raises(UnknownResponse):
                kit.live.get(f"resp_{gone}")
            assert kit.journal.read(f"resp_{gone}") == []

    run(main)


def test_close_ends_everything_once() -> None:
    async def main(kit: Kit) -> None:
        started = [kit.start(always(script)) for script in (LONG, CALL, script_of())]
        await kit.clock.sleep(1.0)
        await kit.live.close()
        ends = ["response.incomplete", "response.incomplete", "response.completed"]
        assert [ear.types()[-1] for _, ear in started] == ends
        for live, ear in started:
            check_ended(kit, live, ear)

    run(main, GPU65)


def timers() -> list[asyncio.TimerHandle]:
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [handle for handle in scheduled if not handle.cancelled()]


def test_deadlock_is_reported() -> None:
    """The client waits for the server, which waits for the client: nothing can ever happen."""

    async def main(clock: Clock) -> None:
        kit = Kit(clock)
        _, ear = kit.start(lambda turn: CALL)
        await ear.wait_stop()
        # As long as a timer is set, time goes on and nobody notices.
        assert timers() == [], "a Response that waits for its client sets a timer"
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"resp_1.*_wait_for_client"):
        run_virtual(main)


class Impatient:
    """A virtual clock on which time may not stand still."""

    is_virtual = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._set: list[float] = []
        self.now, self.timestamp, self.sleep = clock.now, clock.timestamp, clock.sleep

    def call_at(self, when_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self._set = [*self._set[-100:], self.now()]
        assert len(self._set) <= 100 or self._set[0] < self._set[-1], "time stands still"
        return self._clock.call_at(when_s, callback)


def test_keepalive_cannot_stop_time() -> None:
    """Where a deadline rounds down, what is left until it is too little to move the clock."""
    period_s = 15.0
    start_s = 16_384.0 - 7.0
    while not (start_s + period_s) - start_s < period_s:
        start_s = nextafter(start_s, 0.0)

    async def main(clock: Clock) -> list[str]:
        await clock.sleep(start_s)
        assert clock.now() == start_s
        kit = Kit(Impatient(clock))
        _, ear = kit.start(lambda turn: Script((Stall(40.0), *CALL.parts)))
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        await ear.wait_stop()
        await kit.live.close()
        return ear.types()

    assert run_virtual(main)[:4].count("response.in_progress") == 3  # one opens, two keep alive


def test_message_is_heard_in_the_next_turn() -> None:
    """What is appended is what the model reads, in order: outputs, then messages."""
    seen: list[list[str]] = []

    def plan(turn: Turn) -> Script:
        seen.append([getattr(item, "type", type(item).__name__) for item in turn.context.items()])
        return CALL if turn.number == 0 else script_of(SaidText("ok"))

    async def main(kit: Kit) -> None:
        live, ear = kit.start(plan)
        await ear.wait_stop()
        kit.append(live, user("first"))
        kit.answer_all(live)
        await ear.wait_stop()

    run(main)
    assert seen == [
        ["Message"],
        ["Message", "FunctionCall", "FunctionCallOutput", "Message"],
    ]
