"""The shell: timers, turns on the loop, cancels inside a burst, and sinks that misbehave."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from agentloop.engine.api import PrefixLost, Stall
from agentloop.engine.sim.profiles import INSTANT
from agentloop.engine.sim.replica import SimEngine
from agentloop.engine.sim.scheduler import BURST_STEPS
from agentloop.errors import EngineFault
from tests.engine.sim_kit import PLAIN, JumpClock, RecordingSink, make_request, sample


async def test_steps_arrive_at_their_deadlines() -> None:
    clock = JumpClock()
    engine = SimEngine(PLAIN, clock)
    times: list[float] = []
    sink = RecordingSink(lambda _: times.append(round(clock.now() - 1_000, 9)))
    engine.submit(make_request("a", sample(4)), sink)
    finish = await sink.wait()
    assert times == [0.02, 0.025, 0.03, 0.035]
    assert finish.usage.decode_s == 0.015
    assert sink.ids == [100, 101, 102, 103]
    assert (engine.wake_count, engine.late_wake_count) == (4, 0)


async def test_a_late_timer_delivers_all_that_is_due_and_shifts_nothing() -> None:
    clock = JumpClock(late_s=0.013)
    engine = SimEngine(PLAIN, clock)
    times: list[float] = []

    def note(ids: list[int]) -> None:
        times.extend([round(clock.now() - 1_000, 9)] * len(ids))

    sink = RecordingSink(note)
    engine.submit(make_request("a", sample(8)), sink)
    finish = await sink.wait()
    # Due at 20, 25, … 55 ms; the timers fire at 20 + 13, 35 + 13 and 50 + 13 ms.
    assert times == [0.033] * 3 + [0.048] * 3 + [0.063] * 2
    assert finish.usage.decode_s == 0.035
    assert (engine.wake_count, engine.late_wake_count) == (3, 3)


async def test_an_earlier_deadline_moves_the_timer() -> None:
    clock = JumpClock()
    engine = SimEngine(PLAIN, clock)
    slow, quick = RecordingSink(), RecordingSink()
    engine.submit(make_request("slow", sample(1), prompt=range(500)), slow)
    engine.submit(make_request("quick", sample(1), salt="b"), quick)
    await quick.wait()
    assert clock.now() == pytest.approx(1_000.02)
    await slow.wait()
    assert clock.now() == pytest.approx(1_000.51)
    assert clock.timers == []


async def test_timers_on_a_wall_clock_are_never_set_early() -> None:
    """A loop that rounds to the nearest millisecond would wake before the deadline."""
    clock = JumpClock()
    clock.is_virtual = False
    engine = SimEngine(PLAIN, clock)
    sink = RecordingSink()
    engine.submit(make_request("a", sample(1)), sink)
    await sink.wait()
    assert clock.now() == pytest.approx(1_000.0205)


class NoTimers(JumpClock):
    def call_at(self, *_: Any) -> asyncio.TimerHandle:
        raise AssertionError("the instant profile needs no timer")


async def test_instant_streams_share_the_loop_without_timers() -> None:
    engine = SimEngine(INSTANT, NoTimers())
    sinks = [RecordingSink() for _ in range(3)]
    for index, sink in enumerate(sinks):
        engine.submit(make_request(str(index), sample(500)), sink)
    assert not any(sink.steps for sink in sinks)
    delivered = [[0, 0, 0]]
    while not all(sink.finishes for sink in sinks):
        await asyncio.sleep(0)
        delivered.append([len(sink.steps) for sink in sinks])
    assert all(sink.steps == [[token] for token in range(100, 600)] for sink in sinks)
    for before, after in pairwise(delivered):
        assert all(b - a <= BURST_STEPS for a, b in zip(before, after, strict=True))
        assert max(after) - min(after) <= BURST_STEPS
    assert all(sink.finishes[0].usage.decode_s == 0 for sink in sinks)


async def test_a_wake_is_bounded_however_many_streams_there_are() -> None:
    engine = SimEngine(INSTANT, NoTimers())
    sinks = [RecordingSink() for _ in range(100)]
    for index, sink in enumerate(sinks):
        engine.submit(make_request(str(index), sample(64)), sink)
    total = 0
    while not all(sink.finishes for sink in sinks):
        await asyncio.sleep(0)
        before, total = total, sum(len(sink.steps) for sink in sinks)
        assert total - before <= 1_024


async def test_an_instant_stream_still_stalls() -> None:
    clock = JumpClock()
    engine = SimEngine(INSTANT, clock)
    sink = RecordingSink()
    engine.submit(make_request("a", sample(2), Stall(0.5), sample(2)), sink)
    assert (await sink.wait()).usage.decode_s == 0.5
    assert clock.now() == pytest.approx(1_000.5)


async def test_a_cancel_by_the_sink_ends_after_that_burst() -> None:
    engine = SimEngine(INSTANT, JumpClock())
    sink = RecordingSink(lambda ids: generation.cancel())
    generation = engine.submit(make_request("a", sample(BURST_STEPS + 40)), sink)
    finish = await sink.wait()
    assert sink.ids == list(range(100, 100 + BURST_STEPS))
    assert finish.reason == "cancel"
    assert finish.usage.output_tokens == BURST_STEPS
    assert finish.prefix is not None
    assert finish.prefix.token_count == 10 + BURST_STEPS
    again = RecordingSink()
    engine.submit(make_request("b", sample(1), prefix=finish.prefix), again)
    assert (await again.wait()).usage.prompt_tokens == 20 + BURST_STEPS


async def test_a_cancel_with_the_last_steps_wins() -> None:
    engine = SimEngine(INSTANT, JumpClock())
    sink = RecordingSink(lambda ids: generation.cancel())
    generation = engine.submit(make_request("a", sample(5)), sink)
    finish = await sink.wait()
    assert (finish.reason, finish.usage.output_tokens) == ("cancel", 5)
    assert len(sink.finishes) == 1


async def test_a_sink_that_raises_harms_only_itself() -> None:
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    engine = SimEngine(INSTANT, JumpClock())
    bad = RecordingSink(lambda ids: 1 // (100 - ids[0]))
    good = RecordingSink()
    engine.submit(make_request("bad", sample(BURST_STEPS + 9)), bad)
    engine.submit(make_request("good", sample(9)), good)
    assert (await bad.wait()).reason == "cancel"
    assert len(bad.ids) == bad.finishes[0].usage.output_tokens == BURST_STEPS
    assert (await good.wait()).reason == "stop"
    assert [context["message"] for context in complaints] == ["the sink of bad raised"]


async def test_a_finish_that_raises_harms_only_itself() -> None:
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    class Broken(RecordingSink):
        def on_finish(self, finish: object) -> None:
            raise RuntimeError

    engine = SimEngine(INSTANT, JumpClock())
    good = RecordingSink()
    engine.submit(make_request("bad", sample(1)), Broken())
    engine.submit(make_request("good", sample(1)), good)
    assert (await good.wait()).reason == "stop"
    assert len(complaints) == 1


async def test_a_killed_replica_fails_what_runs_and_serves_on() -> None:
    engine = SimEngine(replace(PLAIN, slots=1), JumpClock())
    running = RecordingSink(lambda ids: engine.kill() if ids == [102] else None)
    waiting = RecordingSink()
    engine.submit(make_request("a", sample(9)), running)
    engine.submit(make_request("b", sample(9)), waiting)
    for sink in (running, waiting):
        finish = await sink.wait()
        assert (finish.reason, finish.prefix) == ("error", None)
        assert finish.error is not None
        assert (finish.error.code, finish.error.is_retryable) == ("replica_lost", True)
    assert running.ids == [100, 101, 102]
    after = RecordingSink()
    engine.submit(make_request("c", sample(2)), after)
    assert (await after.wait()).reason == "stop"


async def test_lost_prefixes_are_told() -> None:
    engine = SimEngine(PLAIN, JumpClock())
    sink = RecordingSink()
    engine.submit(make_request("a", sample(3)), sink)
    prefix = (await sink.wait()).prefix
    engine.lose_prefixes()
    with pytest.raises(PrefixLost):
        engine.submit(make_request("b", prefix=prefix), RecordingSink())


async def test_close_cancels_in_every_phase_and_leaves_no_timer() -> None:
    clock = JumpClock()
    engine = SimEngine(PLAIN, clock)
    has_begun = asyncio.Event()
    decoding = RecordingSink(lambda _: has_begun.set())
    engine.submit(make_request("decoding", sample(9)), decoding)
    await has_begun.wait()
    others = [RecordingSink() for _ in range(3)]
    for index, sink in enumerate(others):
        engine.submit(make_request(str(index), sample(9), salt=str(index)), sink)
    await engine.close()
    assert all([finish.reason for finish in sink.finishes] == ["cancel"] for sink in others)
    assert [finish.reason for finish in decoding.finishes] == ["cancel"]
    assert all(timer.cancelled() for timer in clock.timers)
    with pytest.raises(EngineFault) as fault:
        engine.submit(make_request("late"), RecordingSink())
    assert fault.value.code == "engine_closed"
    await engine.close()
