"""Links that could not be shared, cancelled, reused, kept alive or bounded: what the field
reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from agentloop.core.lanes import LANES_MAX, WAITING_MAX
from agentloop.engine.sim.profiles import INSTANT
from agentloop.engine.sim.replica import SimEngine
from agentloop.wire import codec, events
from tests.abuse.scene_kit import NotedEngine, Runs, plain
from tests.conformance.heard import TERMINALS, Event, check_response
from tests.reports.report_kit import (
    SHELL,
    STAGES,
    Client,
    MakeEngine,
    Site,
    append,
    create,
    of_type,
    output,
    reply_to,
    run,
    types_of,
)

ON_STAGES = pytest.mark.parametrize("stage", STAGES)
STEP_MS = 20.0
SLOW = replace(INSTANT, name="slow", step_ms=STEP_MS)
TWENTY = create([{"repeat": {"text": "x ", "tokens": 20}}])
QUICK = create([{"text": "ok"}])
CANCEL: Event = {"type": "response.cancel"}
UNKNOWN_PARENT = {**QUICK, "previous_response_id": "resp_nobody"}
TURN_S = 3.0  # of virtual time: longer than any turn here


def paced(runs: Runs) -> MakeEngine:
    """Engines of one token in each 20 ms, whose generations are noted."""
    return lambda _, clock: NotedEngine(runs, SLOW, clock)


def code_of(said: list[Event]) -> tuple[int, str]:
    """Status and code of the one error among these events."""
    (error,) = of_type(said, "error")
    return error["status"], error["error"]["code"]


def of_lane(said: list[Event], name: str | None) -> list[Event]:
    """What was said on one lane, without the lane's name."""
    own = [event for event in said if event.get("stream_id") == name]
    return [{k: v for k, v in event.items() if k != "stream_id"} for event in own]


async def hear_deltas(client: Client, count: int) -> list[Event]:
    """All that comes until so many deltas have come."""
    said: list[Event] = []
    while len(of_type(said, "response.output_text.delta")) < count:
        await asyncio.sleep(STEP_MS / 1_000)
        said += await client.hear()
    return said


def alone(frame: Event, stage: str) -> list[Event]:
    """All that one create brings where nothing else is said."""
    said: list[Event] = []

    async def main(site: Site) -> None:
        said.extend(await (await site.client()).ask(frame, patience_s=TURN_S))

    run(main, stage, paced(Runs()))
    return said


# -- B01: two creates in flight --------------------------------------------------------------------


@ON_STAGES
@pytest.mark.parametrize("second_after", [0, 3], ids=["one write", "delta 3"])
@pytest.mark.parametrize("final", ["hold", "complete"])
def test_b01_second_create_waits_and_the_first_says_what_it_would_alone(
    second_after: int, final: str, stage: str
) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        if second_after:
            client.say(first)
            said = await hear_deltas(client, second_after)
            client.say(QUICK)
        else:
            client.say(first, QUICK)
            said = []
        said += await client.hear(TURN_S)
        assert said[: len(expected)] == expected
        second = said[len(expected) :]
        assert types_of(second)[0] == "response.created"
        assert second[-1]["response"]["state"] == "idle"
        check_response(second)
        assert runs.started == 2
        first_id, second_id = (each[0]["response"]["id"] for each in (said, second))
        assert (await site.replayed(first_id))[-1]["type"] == "response.completed"
        third = await client.ask(QUICK, patience_s=TURN_S)
        assert third[0]["response"]["id"] not in (first_id, second_id)
        assert runs.started == 3

    runs = Runs()
    first = {**TWENTY, "agent_loop": {"final": final}}
    expected = alone(first, stage)
    run(main, stage, paced(runs))


@ON_STAGES
@pytest.mark.parametrize(
    "bad", [UNKNOWN_PARENT, {**QUICK, "tools": [7]}], ids=["unknown parent", "bad tools"]
)
def test_b01_refused_second_create_leaves_the_first_open(bad: Event, stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        said = await client.ask(TWENTY, bad, patience_s=TURN_S)
        code_of(said)
        assert [event for event in said if event["type"] != "error"] == expected
        assert runs.started == 1
        goes_on = await client.ask(append({"role": "user", "content": "more"}), patience_s=TURN_S)
        assert goes_on[-1]["response"]["id"] == said[0]["response"]["id"]

    runs = Runs()
    expected = alone(TWENTY, stage)
    run(main, stage, paced(runs))


@ON_STAGES
def test_b01_creates_beyond_the_queue_are_refused_and_the_rest_come_in_order(stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        queued = [{**QUICK, "instructions": str(n)} for n in range(WAITING_MAX + 1)]
        said = await client.ask(TWENTY, *queued, patience_s=TURN_S)
        assert code_of(said) == (429, "too_many_queued")
        told = [e["response"]["instructions"] for e in of_type(said, "response.created")]
        assert told == [None, *(str(n) for n in range(WAITING_MAX))]
        assert [e for e in said if e["type"] != "error"][: len(expected)] == expected

    expected = alone(TWENTY, stage)
    run(main, stage, paced(Runs()))


# -- B02: stream_id --------------------------------------------------------------------------------


@ON_STAGES
def test_b02_every_event_and_error_bears_the_lane_of_its_create(stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        a, b = {**TWENTY, "stream_id": "a"}, {**UNKNOWN_PARENT, "stream_id": "b"}
        said = await client.ask(a, b, patience_s=TURN_S)
        (error,) = of_type(said, "error")
        assert error["stream_id"] == "b"
        assert error["error"]["code"] == "previous_response_not_found"
        assert error["error"]["param"] == "previous_response_id"
        assert of_lane(said, "a") == expected
        assert len(of_lane(said, "a")) + 1 == len(said)

    expected = alone(TWENTY, stage)
    run(main, stage, paced(Runs()))


@ON_STAGES
def test_b02_lanes_interleave_and_each_says_what_it_would_alone(stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        names = ["a", "b.c_D-9", "x" * 256, None]
        creates = [{**TWENTY, "stream_id": name} if name else TWENTY for name in names]
        said = await client.ask(*creates, patience_s=TURN_S)
        lanes = [event.get("stream_id") for event in said]
        assert lanes != sorted(lanes, key=str)
        for name in names:
            assert plain(of_lane(said, name)) == expected

    expected = plain(alone(TWENTY, stage))
    run(main, stage, paced(Runs()))


@ON_STAGES
def test_b02_messages_by_lane_reach_the_response_of_that_lane(stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        calling = create([SHELL], [{"text": "done"}])
        said = await client.ask({**calling, "stream_id": "a"}, calling)
        calls = {
            event.get("stream_id"): event["response"]["pending_tool_calls"][0]["call_id"]
            for event in of_type(said, "response.done")
        }
        ids = {e.get("stream_id"): e["response"]["id"] for e in of_type(said, "response.created")}
        said = await client.ask(append(output(calls["a"]), stream_id="a"))
        assert {event["stream_id"] for event in said} == {"a"}
        assert said[0]["response_id"] == ids["a"]
        said = await client.ask({"type": "response.close", "stream_id": "a"})
        assert [(e["type"], e["stream_id"]) for e in said] == [("response.completed", "a")]
        said = await client.ask(append(output(calls[None])))
        assert not [event for event in said if "stream_id" in event]

    run(main, stage)


@ON_STAGES
@pytest.mark.parametrize("name", ["", "a b", "x" * 257, "ü", "a/b", "a\n"])
def test_b02_invalid_stream_id_is_refused_by_name(name: str, stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        (error,) = await client.ask({**QUICK, "stream_id": name})
        assert error["error"]["param"] == "stream_id"
        assert error["stream_id"] == name
        assert list(site.service.live) == []

    run(main, stage)


@ON_STAGES
def test_b02_one_lane_too_many_is_refused_by_name(stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        lanes = [{**QUICK, "stream_id": str(number)} for number in range(LANES_MAX + 1)]
        (error,) = of_type(await client.ask(*lanes), "error")
        assert error["error"]["code"] == "websocket_stream_limit_reached"
        assert (error["error"]["param"], error["stream_id"]) == ("stream_id", str(LANES_MAX))

    run(main, stage)


# -- B04: cancel before there is an id -------------------------------------------------------------

HELD = create([{"stall_ms": 300}, {"text": "late"}])
ONE_SLOT = replace(INSTANT, slots=1)
FREE_S = 0.1  # within this long after a cancel the engine's slot is free


@ON_STAGES
@pytest.mark.parametrize("after_s", [None, 0.005, 0.299])
@pytest.mark.parametrize("stream_id", [None, "a"])
def test_b04_cancel_without_an_id_ends_the_lanes_response_and_frees_its_slot(
    after_s: float | None, stream_id: str | None, stage: str
) -> None:
    async def main(site: Site) -> None:
        client, other = await site.client(), await site.client()
        lane = {} if stream_id is None else {"stream_id": stream_id}
        if after_s is None:
            client.say({**HELD, **lane}, {**CANCEL, **lane})
        else:
            client.say({**HELD, **lane})
            await asyncio.sleep(after_s)
            client.say({**CANCEL, **lane})
        other.say(QUICK)
        said = of_lane(await client.hear(FREE_S), stream_id)
        assert types_of(of_type(said, *TERMINALS)) == ["response.incomplete"]
        assert said[-1]["response"]["status"] == "cancelled"
        check_response(said)
        assert (await other.hear())[-1]["type"] == "response.done"  # it waited for the slot
        assert (await client.ask(QUICK))[-1]["type"] == "response.done"

    run(main, stage, lambda _, clock: SimEngine(ONE_SLOT, clock))


@ON_STAGES
def test_b04_cancels_end_the_one_at_work_then_those_that_wait(stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        said = await client.ask(HELD, HELD, HELD, *[CANCEL] * 4, patience_s=FREE_S)
        ends = [event["response"]["status"] for event in of_type(said, *TERMINALS)]
        assert ends == ["cancelled"] * 3
        assert types_of(said).count("response.created") == 3
        assert code_of(said) == (400, "response_already_completed")
        assert said[-1]["type"] == "error"

    run(main, stage)


@ON_STAGES
def test_b04_cancel_of_an_unknown_id_changes_nothing(stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        assert code_of(await client.ask(CANCEL)) == (400, "response_not_found")
        said = await client.ask(TWENTY, {**CANCEL, "response_id": "resp_x"}, patience_s=TURN_S)
        (error,) = of_type(said, "error")
        assert (error["error"]["code"], error["response_id"]) == ("response_not_found", "resp_x")
        assert [event for event in said if event["type"] != "error"] == expected

    expected = alone(TWENTY, stage)
    run(main, stage, paced(Runs()))


# -- B07: a link after each kind of end ------------------------------------------------------------

ENDS: list[tuple[str, Event]] = [
    ("completed", create([{"text": "ok"}])),
    ("incomplete", create([{"text": "one two three four five"}], max_output_tokens=2)),
    ("failed", create([{"text": "so"}, {"fail": "server_error", "times": 1_000}])),
    ("cancelled", create([{"stall_ms": 1_000}, {"text": "late"}])),
    ("completed", create([SHELL], [{"text": "done"}])),
]


async def play_to(client: Client, status: str, frame: Event) -> list[Event]:
    """A create, and all that comes of it until it ends in that way."""
    said = await client.ask(frame)
    if status == "cancelled":
        said += await client.ask(CANCEL)
    while said[-1]["type"] == "response.done":
        said += await client.ask(reply_to(said[-1]))
    return said


@ON_STAGES
@pytest.mark.parametrize("final", ["hold", "complete"])
def test_b07_one_link_serves_responses_that_end_in_every_way(final: str, stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        for status, frame in [*ENDS, *reversed(ENDS), *ENDS[1:3], *ENDS[2:0:-1]]:
            said = await play_to(client, status, {**frame, "agent_loop": {"final": final}})
            assert types_of(said)[0] == "response.created"
            assert said[-1]["response"]["status"] == status
            check_response(said)
        assert list(site.service.live) == []

    run(main, stage)


# -- B11: a failure gives the link back ------------------------------------------------------------

CREATED_S = 0.05  # within this long after a failure the next create is taken
FAILING = create([{"text": "one two"}, {"fail": "server_error", "times": 1_000}])


@ON_STAGES
def test_b11_hundred_failures_leave_room_for_as_many_creates(stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        for number in range(100):
            lane = {"stream_id": f"lane{number % LANES_MAX}"}
            said = await client.ask({**FAILING, **lane}, {**TWENTY, **lane}, patience_s=CREATED_S)
            ended = types_of(said).index("response.failed")
            assert types_of(said)[ended + 1] == "response.created"
            assert said[-1]["response"]["state"] == "idle"

    run(main, stage, paced(Runs()))


class Encoder:
    """The encoder of events, which fails once for the second event of a type."""

    def __init__(self, event_type: type[Any]) -> None:
        self.left = 2
        self._event_type = event_type
        self._encode = codec.encode

    def __call__(self, value: Any) -> bytes:
        if isinstance(value, self._event_type):
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("this event cannot be said")
        return self._encode(value)


@ON_STAGES
@pytest.mark.parametrize("event_type", [events.OutputTextDelta, events.OutputItemDone])
def test_b11_event_that_cannot_be_said_fails_its_response_alone(
    event_type: type[Any], stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(site: Site) -> None:
        client, other = await site.client(), await site.client()
        suspended = (await other.ask(create([SHELL], [{"text": "done"}])))[-1]
        monkeypatch.setattr(codec, "encode", Encoder(event_type))
        said = await client.ask(create([{"text": "a b c d"}, SHELL]), QUICK, patience_s=TURN_S)
        (failed,) = of_type(said, *TERMINALS)
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"]["code"] == "server_error"
        assert said[-1]["response"]["state"] == "idle"
        assert (await other.ask(reply_to(suspended)))[-1]["response"]["state"] == "idle"

    run(main, stage)


@ON_STAGES
def test_b11_creation_that_cannot_be_said_leaves_nothing_behind(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        encoder = Encoder(events.ResponseCreated)
        encoder.left = 1
        monkeypatch.setattr(codec, "encode", encoder)
        assert code_of(await client.ask(QUICK)) == (500, "server_error")
        assert list(site.service.live) == []
        assert (await client.ask(QUICK))[-1]["response"]["state"] == "idle"

    run(main, stage)
