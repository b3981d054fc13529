"""Lanes that share a link: what waits is never stranded, and what is refused leaves no trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from agentloop.clock import Clock, run_virtual
from agentloop.core.fold import Fold
from agentloop.core.keys import Keys
from agentloop.link.api import Link
from agentloop.loop.live_response import LiveResponse
from agentloop.serve.lanes import SAMPLING_MAX
from agentloop.serve.replay import PIECE_BYTES, pieces
from agentloop.server.options import ServerOptions
from tests.conformance.runner import World
from tests.conformance.stages import in_memory

CALL: dict[str, Any] = {"call": {"name": "shell"}}
LONG: dict[str, Any] = {"repeat": {"text": "word ", "tokens": 20_000}}
STALLED: list[dict[str, Any]] = [{"stall_ms": 10_000_000}, {"text": "x"}]
TOOLS = [{"type": "function", "name": "shell"}]


def say(link: Link, **message: Any) -> None:
    link.send([msgspec.json.encode(message)])


def create(link: Link, *turns: list[dict[str, Any]], **fields: Any) -> None:
    simulation = {"turns": turns}
    frame = {"model": "sim", "input": "go", "tools": TOOLS, "simulation": simulation}
    say(link, **{"type": "response.create", **frame, **fields})


async def hear(link: Link, until: str) -> list[Any]:
    """All events up to the first of this type."""
    heard: list[Any] = []
    async with asyncio.timeout(600.0):
        while not heard or heard[-1]["type"] != until:
            heard.append(msgspec.json.decode(await link.recv()))
    return heard


async def opened(link: Link, *turns: list[dict[str, Any]], until: str, **fields: Any) -> str:
    """The id of a new Response, once this was said."""
    create(link, *turns, **fields)
    first_id: str = (await hear(link, until))[0]["response"]["id"]
    return first_id


def live_of(world: World, response_id: str) -> LiveResponse:
    return world.service.live.get(response_id)


def run(main: Callable[[World, Link, Clock], Coroutine[Any, Any, None]]) -> None:
    async def watched(clock: Clock) -> None:
        options = ServerOptions(profile="spark1000", is_reproducible=True)
        async with in_memory(options, {}, clock) as world:
            await main(world, await world.open("append"), clock)

    run_virtual(watched)


# -- refused appends -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "ended"])
def test_refused_append_counts_for_nothing(is_open: bool) -> None:
    async def main(world: World, link: Link, clock: Clock) -> None:
        response_id = await opened(link, [CALL], until="response.done")
        if not is_open:
            say(link, type="response.cancel")
            await hear(link, "response.incomplete")
        live = live_of(world, response_id)
        before = live.byte_count, world.service.live.shared.load.received_bytes
        output = {"type": "function_call_output", "call_id": "none", "output": "x" * 100_000}
        say(link, type="response.append", response_id=response_id, input=[output])
        say(link, type="response.append", response_id=response_id, input="y" * 100_000 * is_open)
        await hear(link, "error")
        if not is_open:
            assert before[1] == 0
            assert (live.byte_count, world.service.live.shared.load.received_bytes) == before
        else:  # the message was taken, the output was not
            assert 100_000 < world.service.live.shared.load.received_bytes - before[1] < 110_000

    run(main)


# -- creates that vanish ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["link lost", "taken over", "create cancelled"])
def test_message_that_stood_back_for_a_create_gets_its_turn_without_it(way: str) -> None:
    async def main(world: World, link: Link, clock: Clock) -> None:
        slow: list[dict[str, Any]] = [{"stall_ms": 1000}, {"text": "a"}]
        options = {"detach_ttl_s": 3600}
        create(link, [CALL], slow, [{"text": "more"}], agent_loop=options, stream_id="r")
        heard = await hear(link, "response.done")
        response_id = heard[0]["response"]["id"]
        call_id = heard[-1]["response"]["pending_tool_calls"][0]["call_id"]
        for number in range(SAMPLING_MAX):
            create(link, STALLED, stream_id=f"lane{number}")
        output = {"type": "function_call_output", "call_id": call_id, "output": "ok"}
        say(link, type="response.append", response_id=response_id, input=[output])
        await clock.sleep(0.1)
        parent = {"previous_response_id": "none"} if way == "create cancelled" else {}
        create(link, [{"text": "b"}], stream_id="r", **parent)
        say(link, type="response.append", response_id=response_id, input="more")
        await clock.sleep(5.0)
        response = live_of(world, response_id).response
        assert len(response.waiting) == 1, "it stands back for a create that waits for room"
        match way:
            case "link lost":
                link.abort()
            case "taken over":
                say(await world.open("append"), type="response.attach", response_id=response_id)
            case _:
                say(link, type="response.cancel", stream_id="r")
        await clock.sleep(5.0)
        assert response.waiting == []
        assert response.turn == 3

    run(main)


@pytest.mark.parametrize("protocol", ["append", "inject"])
def test_create_that_is_refused_when_its_turn_comes_completes_nothing(protocol: str) -> None:
    async def main(world: World, _: Link, clock: Clock) -> None:
        link = await world.open(protocol)
        first: list[list[dict[str, Any]]] = [[{"stall_ms": 1000}, {"text": "a"}], [{"text": "b"}]]
        response_id = await opened(
            link, *first, until="response.created", agent_loop={"final": "complete"}
        )
        say(link, type="response.append", response_id=response_id, input="more")
        create(link, [{"text": "c"}], previous_response_id="none")
        await hear(link, "error")
        completed = (await hear(link, "response.completed"))[-1]
        assert completed["response"]["unconsumed_input"] == []
        assert live_of(world, response_id).response.turn == 2

    run(main)


# -- replays ---------------------------------------------------------------------------------------


def test_cancel_within_a_replay_takes_the_create_that_waits() -> None:
    async def main(world: World, link: Link, clock: Clock) -> None:
        response_id = await opened(
            link, [LONG], until="response.done", agent_loop={"detach_ttl_s": 3600}
        )
        other = await world.open("append")
        say(other, type="response.attach", response_id=response_id)
        create(other, [{"text": "b"}])
        say(other, type="response.cancel")
        await hear(other, "response.attached")
        (*_, cancelled) = await hear(other, "response.incomplete")
        assert cancelled["response"]["id"] != response_id

    run(main)


def test_failed_replay_lets_go_of_its_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World, link: Link, clock: Clock) -> None:
        turn = [LONG, {"stall_ms": 600_000}, {"text": "late"}]
        response_id = await opened(link, turn, until="response.created")
        await clock.sleep(60.0)
        other = await world.open("append")
        say(other, type="response.attach", response_id=response_id)
        await clock.sleep(0.1)
        with monkeypatch.context() as patch:
            patch.setattr(Fold, "repeat", None)
            await hear(other, "error")
        live = live_of(world, response_id)
        assert not live.is_open, "not detachable, and nobody hears it any more"
        assert live.listener is None
        create(other, [{"text": "next"}])
        (*_, done) = await hear(other, "response.done")
        assert done["response"]["id"] != response_id

    run(main)


@pytest.mark.parametrize("from_the_end", [0, 3])
def test_piece_of_a_replay_is_small_wherever_it_begins(from_the_end: int) -> None:
    async def main(world: World, link: Link, clock: Clock) -> None:
        live = live_of(world, await opened(link, [LONG], until="response.done"))
        journal, next_seq = world.service.live.shared.journal, live.response.transcript.next_seq
        starting_after = next_seq - 1 - from_the_end if from_the_end else -1
        said = list(pieces(live, journal, starting_after))
        assert len(said) > 20, "what is left out takes its time too"
        assert all(len(piece) < PIECE_BYTES // 100 for piece in said)
        assert sum(map(len, said)) == (from_the_end or next_seq)

    run(main)


def test_many_attaches_at_once_wait_for_their_reader() -> None:
    async def main(world: World, link: Link, clock: Clock) -> None:
        response_id = await opened(
            link, [{"text": "a"}], until="response.done", instructions="x" * 900_000
        )
        for number in range(30):
            say(
                link, type="response.attach", response_id=response_id, observe=True,
                stream_id=f"lane{number}",
            )  # fmt: skip
        for _ in range(30):
            await hear(link, "response.replay.done")

    run(main)


# -- the line for the sixteen ----------------------------------------------------------------------


def test_room_on_a_link_is_used_while_another_lane_replays() -> None:
    async def main(world: World, link: Link, clock: Clock) -> None:
        turn = [LONG, {"stall_ms": 60_000}, {"text": "end"}]
        options = {"detach_ttl_s": 3600}
        response_id = await opened(link, turn, until="response.created", agent_loop=options)
        await clock.sleep(30.0)
        other = await world.open("append")
        for number in range(SAMPLING_MAX - 1):
            create(other, STALLED, stream_id=f"lane{number}")
        say(other, type="response.attach", response_id=response_id, stream_id="replayed")
        create(other, [{"text": "first"}], stream_id="first")
        await clock.sleep(100.0)  # nobody reads the replay; the turn ends within it
        assert len(list(world.service.live)) == SAMPLING_MAX + 1

    run(main)


def test_key_is_released_by_its_last_owner_only() -> None:
    keys: Keys[str] = Keys(1)
    keys.keep("k", b"", "resp_a")
    keys.keep("other", b"", "resp_b")  # forgets the first
    keys.keep("k", b"", "resp_c")
    keys.release("k", "resp_a")
    assert keys.find("k", b"") == "resp_c"
