"""A long replay: in pieces, complete, in order, and in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from agentloop.clock import Clock, run_virtual
from agentloop.link.api import DRAINED_BYTES, Link, LinkLimits
from agentloop.link.memory import memory_pair
from agentloop.loop.live import Live
from agentloop.serve.connection import Connection
from agentloop.serve.designs import DESIGNS
from agentloop.server.options import ServerOptions
from tests.conformance.runner import SETTLE_S, World
from tests.conformance.stages import in_memory

LONG = {"repeat": {"text": "word ", "tokens": 20_000}}  # about four megabytes of events
CREATE: dict[str, Any] = {
    "type": "response.create",
    "model": "sim",
    "input": "go",
    "agent_loop": {"detach_ttl_s": 3600},
    "simulation": {"turns": [[LONG, {"stall_ms": 60_000}, {"text": "late"}], [{"text": "more"}]]},
}


def say(link: Link, **message: Any) -> None:
    link.send([msgspec.json.encode(message)])


async def hear(link: Link, *, until: str, patience_s: float = 60.0) -> list[Any]:
    """All events up to the first of this type."""
    heard: list[Any] = []
    async with asyncio.timeout(patience_s):
        while not heard or heard[-1]["type"] != until:
            heard.append(msgspec.json.decode(await link.recv()))
    return heard


def numbers(heard: list[Any]) -> list[int]:
    return [event["sequence_number"] for event in heard if "sequence_number" in event]


def run(main: Callable[[World, Link, str, Clock], Coroutine[Any, Any, None]]) -> None:
    """With a link on which a long Response stalls in its turn."""

    async def watched(clock: Clock) -> None:
        options = ServerOptions(profile="spark1000", is_reproducible=True)
        async with in_memory(options, {}, clock) as world:
            link = await world.open("append")
            say(link, **CREATE)
            created = (await hear(link, until="response.created"))[0]
            await clock.sleep(30.0)  # it stalls
            await main(world, link, created["response"]["id"], clock)

    run_virtual(watched)


def test_history_and_what_is_said_meanwhile_have_no_gap() -> None:
    async def main(world: World, first: Link, response_id: str, clock: Clock) -> None:
        second = await world.open("append")
        say(second, type="response.attach", response_id=response_id)
        (attached,) = await hear(second, until="response.attached")
        await clock.sleep(100.0)  # nobody reads; the turn goes on and ends
        replayed = await hear(second, until="response.replay.done")
        assert numbers(replayed) == list(range(len(replayed) - 1))
        assert replayed[-2]["type"] == "response.done"
        assert attached["next_seq"] < len(replayed) - 1
        say(second, type="response.append", input="more")
        live = await hear(second, until="response.done")
        assert numbers(live)[0] == len(replayed) - 1

    run(main)


def test_replay_never_overflows_the_link_nor_fills_its_queue() -> None:
    async def main(world: World, first: Link, response_id: str, clock: Clock) -> None:
        gate = world.service.live.shared.journal.gate
        limits = LinkLimits(queue_bytes=512 * 1024)
        theirs, ours = memory_pair(clock, gate, limits=limits)
        async with asyncio.TaskGroup() as group:
            connection = group.create_task(
                Connection(theirs, world.service, DESIGNS["append"]).run()
            )
            say(ours, type="response.attach", response_id=response_id, observe=True)
            await clock.sleep(0.1)
            assert 0 < theirs.queued_bytes < min(limits.queue_bytes, DRAINED_BYTES)
            replayed = await hear(ours, until="response.replay.done")
            assert sum(map(len, map(msgspec.json.encode, replayed))) > 2 * limits.queue_bytes
            await ours.close()
            await connection
        await theirs.close()

    run(main)


def test_other_links_are_served_between_the_pieces() -> None:
    async def main(world: World, first: Link, response_id: str, clock: Clock) -> None:
        second, third = await world.open("append"), await world.open("append")
        say(second, type="response.attach", response_id=response_id, observe=True)
        say(third, type="response.cancel")
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(hear(second, until="response.replay.done"))
            await hear(third, until="error")
            assert not reading.done()

    run(main)


def test_create_waits_for_the_end_of_the_replay() -> None:
    async def main(world: World, first: Link, response_id: str, clock: Clock) -> None:
        second = await world.open("append")
        await clock.sleep(100.0)  # the turn is over
        say(second, type="response.attach", response_id=response_id)
        say(second, type="response.create", model="sim", input="next")
        replayed = await hear(second, until="response.replay.done")
        assert [event["type"] for event in replayed].count("response.created") == 1
        (created,) = await hear(second, until="response.created")
        assert created["response"]["id"] != response_id

    run(main)


def test_another_attachment_ends_the_replay() -> None:
    async def main(world: World, first: Link, response_id: str, clock: Clock) -> None:
        second, third = await world.open("append"), await world.open("append")
        say(second, type="response.attach", response_id=response_id)
        await clock.sleep(0.1)
        say(third, type="response.attach", response_id=response_id)
        heard = await hear(second, until="response.detached")
        assert "response.replay.done" not in [event["type"] for event in heard]
        with pytest.raises(TimeoutError):
            await hear(second, until="anything", patience_s=SETTLE_S)
        await hear(third, until="response.replay.done")

    run(main)


def test_response_forgotten_within_its_replay_is_one_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(world: World, first: Link, response_id: str, clock: Clock) -> None:
        live: Live = world.service.live
        second = await world.open("append")
        say(second, type="response.attach", response_id=response_id, observe=True)
        await clock.sleep(0.1)
        live.shared.journal.forget(response_id)
        heard = await hear(second, until="error")
        assert heard[-1]["error"]["code"] == "response_not_found"
        say(second, type="response.create", model="sim", input="next")
        await hear(second, until="response.done")

    run(main)
