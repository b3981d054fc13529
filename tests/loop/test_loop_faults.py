"""Engine faults at every place of a turn, and what the client hears of them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from agentloop.behaviors.api import Turn
from agentloop.engine.api import Fault, GenRequest, PrefixLost, Script, Sink
from agentloop.engine.sim.profiles import GPU65
from agentloop.engine.sim.replica import SimGeneration
from agentloop.errors import EngineFault
from agentloop.tokens.render import Said, SaidCall, SaidReasoning, SaidText
from agentloop.wire.requests import AgentLoopOptions
from tests.loop.loop_kit import Kit, check_ended, failing_at, ids_of, run, script_of, user

CALL = SaidCall("shell", '{"cmd":"ls -la"}')
TURN: list[Said] = [SaidReasoning("hm"), SaidText("let me look"), CALL, CALL]
IDS = ids_of(*TURN)
PLACES = range(len(IDS) + 1)
OUTPUT = [
    ("reasoning", "hm"),
    ("message", "let me look"),
    ("function_call", '{"cmd":"ls -la"}'),
    ("function_call", '{"cmd":"ls -la"}'),
]
OVERLOADED = Fault("overloaded", is_retryable=True)
BROKEN = Fault("server_error", is_retryable=False)


@pytest.mark.parametrize("place", PLACES)
def test_fault_that_no_retry_helps_ends_the_response_once(place: int) -> None:
    async def main(kit: Kit) -> None:
        live, ear = kit.start(lambda turn: failing_at(IDS, place, BROKEN))
        end = await ear.wait_stop()
        assert end["type"] == "response.failed"
        assert end["response"]["error"]["code"] == "server_error"
        await asyncio.sleep(0)
        check_ended(kit, live, ear)
        assert end["response"]["usage"]["output_tokens"] == place
        await kit.check_free()

    run(main)


@pytest.mark.parametrize("place", PLACES)
def test_retry_goes_on_where_the_fault_was(place: int) -> None:
    def plan(turn: Turn) -> Script:
        return failing_at(IDS, place, OVERLOADED) if turn.attempt == 0 else script_of(*TURN)

    async def main(kit: Kit) -> None:
        live, ear = kit.start(plan)
        stop = await ear.wait_stop()
        assert stop["response"]["state"] == "suspended"
        assert ear.output() == OUTPUT
        assert stop["response"]["usage"]["output_tokens"] == len(IDS)
        first, second = kit.engine.requests
        assert second.ids[len(first.ids) :].tolist() == IDS[:place]
        assert second.output_count == place
        live.response.cancel()
        live.publish()
        await asyncio.sleep(0)
        check_ended(kit, live, ear)
        await kit.check_free()

    run(main)


def test_retries_wait_longer_each_time_and_end() -> None:
    async def main(kit: Kit) -> list[float]:
        live, ear = kit.start(
            lambda turn: Script((OVERLOADED,)), options=AgentLoopOptions(engine_retries=4)
        )
        end = await ear.wait_stop()
        assert end["type"] == "response.failed"
        assert end["response"]["error"]["code"] == "overloaded"
        await asyncio.sleep(0)
        check_ended(kit, live, ear)
        return [at_s for at_s, _ in kit.engine.finishes]

    tried_s = run(main)
    waits_s = [late - early for early, late in pairwise(tried_s)]
    assert len(waits_s) == 4
    assert waits_s == pytest.approx([waits_s[0] * factor for factor in (1, 2, 4, 8)])
    assert waits_s[0] > 0


class Refusing:
    """An engine that does not take the first requests."""

    def __init__(self, kit: Kit, faults: list[Exception]) -> None:
        self._kit = kit
        self._faults = faults

    def submit(self, request: GenRequest, sink: Sink) -> SimGeneration:
        if self._faults:
            raise self._faults.pop(0)
        return self._kit.sim.submit(request, sink)

    async def close(self) -> None: ...


@pytest.mark.parametrize("is_retryable", [True, False])
def test_refused_request_is_a_fault_like_any_other(is_retryable: bool) -> None:
    async def main(kit: Kit) -> None:
        fault = EngineFault("too many", code="overloaded", is_retryable=is_retryable)
        _, ear = kit.start(lambda turn: script_of(*TURN), engine=Refusing(kit, [fault]))
        stop = await ear.wait_stop()
        assert stop["type"] == ("response.done" if is_retryable else "response.failed")

    run(main)


def test_lost_prefix_is_one_resubmission_of_the_same_prompt() -> None:
    def plan(turn: Turn) -> Script:
        return script_of(*TURN) if turn.number == 0 else script_of(SaidText("seen"))

    async def main(kit: Kit, is_lost: bool) -> list[int]:
        live, ear = kit.start(plan, options=AgentLoopOptions(final="hold", engine_retries=0))
        await ear.wait_stop()
        if is_lost:
            kit.sim.lose_prefixes()
        kit.answer_all(live)
        await asyncio.sleep(0)
        prompt = live.response.prompt_from(0).tolist()  # of the turn that has just begun
        stop = await ear.wait_stop()
        assert stop["response"]["state"] == "idle"
        *before, last = kit.engine.requests
        assert len(before) == (2 if is_lost else 1)
        if is_lost:
            assert before[-1].prefix is not None
            assert last.prefix is None
            assert last.ids.tolist() == prompt
        else:
            assert last.prefix is not None
            assert last.ids.tolist() == prompt[last.prefix.token_count :]
        cached = stop["response"]["usage"]["input_tokens_details"]["cached_tokens"]
        assert (cached > 0) is not is_lost
        return prompt

    assert run(lambda kit: main(kit, True)) == run(lambda kit: main(kit, False))


def test_prefix_lost_over_and_over_ends() -> None:
    async def main(kit: Kit) -> None:
        engine = Refusing(kit, [PrefixLost(0) for _ in range(100)])
        live, ear = kit.start(lambda turn: script_of(*TURN), engine=engine)
        assert (await ear.wait_stop())["type"] == "response.failed"
        await asyncio.sleep(0)
        check_ended(kit, live, ear)

    run(main)


def test_killed_replica_is_retried() -> None:
    async def main(kit: Kit) -> None:
        live, ear = kit.start(lambda turn: script_of(SaidText("word " * 400)))
        await kit.clock.sleep(1.0)
        assert live.response.transcript.turn_ids
        kit.sim.kill()
        stop = await ear.wait_stop()
        assert stop["response"]["state"] == "idle"
        assert ear.output() == [("message", "word " * 400)]
        kit.append(live, user("more"))
        await ear.wait_stop()

    run(main, GPU65)
