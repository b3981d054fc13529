"""Peers that say too much, or read too little: what the server holds for them has a bound, and
nobody else hears of it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from agentloop.core.lanes import WAITING_MAX
from agentloop.link.api import DEFAULT_LIMITS, MIB, LinkLimits
from agentloop.serve.lanes import SAMPLING_MAX
from tests.abuse.scene_kit import (
    STALLED_S,
    Held,
    Scene,
    Tally,
    create,
    drown,
    plain,
    rss_bytes,
    run,
    undisturbed,
)
from tests.abuse.socket_kit import PING, frame, text, until
from tests.conformance.heard import Event

TRANSPORT_BYTES_MAX = 256 * 1024  # what a link has written and the kernel has not taken
QUEUE_BYTES = 300 * 1024
NARROW = LinkLimits(queue_bytes=QUEUE_BYTES, heartbeat_s=None)
SLOW_CONSUMER = (1013, f"slow consumer: more than {QUEUE_BYTES} bytes unread")
DETACHABLE: Event = {"agent_loop": {"detach_ttl_s": 3_600.0}}
MUCH: list[Event] = [{"stall_ms": 500}, {"repeat": {"text": "x ", "tokens": 28_000}}]  # 0.9 MB
FAST = "spark4000"
TINY_CREATE = msgspec.json.encode({"type": "response.create", "model": "sim", "input": ""})
TINY_APPEND = b'{"type":"response.append","response_id":"r","input":[]}'


def check_bound(held: Held, limits: LinkLimits) -> None:
    """The server held no more for this peer than its limits say."""
    assert held.queued_bytes_max <= limits.queue_bytes
    assert held.unsent_bytes_max <= limits.queue_bytes + 2 * TRANSPORT_BYTES_MAX


# -- readers that stop -----------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, DETACHABLE], ids=["ends", "goes on"])
def test_reader_that_stops_is_cut_off_alone(fields: Event) -> None:
    async def main(scene: Scene) -> None:
        peer, held = await scene.narrow_link()
        other, observer = await scene.peer(), await scene.peer()
        await other.say(create())
        created, *_ = await peer.ask(much)
        response_id = created["response"]["id"]
        peer.stop_reading()
        await observer.say(observe(response_id))
        await until(lambda: held.link.is_closed)
        check_bound(held, NARROW)
        peer.read_on()
        assert await peer.hear_end() == SLOW_CONSUMER
        watched = [event for event in await observer.hear(1.0) if "sequence_number" in event]
        if fields:
            assert plain(watched) == told
        else:
            assert scene.runs.reasons[-1] == "cancel"
            assert await scene.terminal(response_id) == ("response.incomplete", "detached")
        assert plain(await other.hear(3.0)) == alone

    much = create(MUCH, FAST, **fields)
    alone, told = plain(undisturbed(create())), plain(undisturbed(much))
    run(main, NARROW)


def observe(response_id: str) -> Event:
    return {"type": "response.attach", "response_id": response_id, "observe": True}


def test_replay_waits_for_its_reader() -> None:
    async def main(scene: Scene) -> None:
        first = await scene.peer()
        told = await first.ask(create(MUCH, FAST), patience_s=1.0)
        peer, held = await scene.narrow_link()
        peer.stop_reading()
        await peer.say(observe(told[0]["response"]["id"]))
        await asyncio.sleep(60.0)
        assert not held.link.is_closed
        check_bound(held, NARROW)
        peer.read_on()
        await until(lambda: len(peer.events) == len(told) + 2)
        assert (await peer.hear())[1:-1] == told

    run(main, NARROW)


@pytest.mark.parametrize("size", [0, 125])
def test_pong_comes_while_much_waits_to_be_read(size: int) -> None:
    async def main(scene: Scene) -> None:
        peer, held = await scene.narrow_link()
        heard = await peer.ask(create(MUCH, FAST))
        peer.stop_reading()
        await until(lambda: held.link.queued_bytes > QUEUE_BYTES // 2)
        await peer.write(frame(b"?" * size, PING) * 3)
        await asyncio.sleep(0.01)
        written_count = held.link.frames_out
        peer.read_on()
        await until(lambda: len(peer.pongs) == 3)
        assert {payload for payload, _ in peer.pongs} == {b"?" * size}
        heard += await peer.hear(1.0)
        assert heard == told
        assert peer.pongs[0][1] <= written_count < len(heard)  # it does not stand in the queue

    told = undisturbed(create(MUCH, FAST))
    run(main, LinkLimits(heartbeat_s=None))


# -- floods ----------------------------------------------------------------------------------------

FLOODS: dict[str, tuple[bytes, int, set[str]]] = {
    "empty frames": (frame(), 100_000, {"invalid_input"}),
    "appends": (text(TINY_APPEND), 100_000, {"response_not_found"}),
    "creates": (text(TINY_CREATE), 10_000, {"too_many_queued"}),
    "pings": (frame(opcode=PING), 100_000, set()),
}
WAVES = 100
RSS_BYTES_MAX = 32 * MIB


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_flood_of_a_reader_is_answered_one_for_one(flood: tuple[bytes, int, set[str]]) -> None:
    async def main(scene: Scene) -> None:
        one, count, codes = flood
        (peer, held), other = await scene.link(), await scene.peer()
        heard = Tally(peer)
        await other.say(create())
        wave, before_bytes = one * (count // WAVES), rss_bytes()
        for _ in range(WAVES):
            await peer.write(wave)
            await peer.hear(0.05)
        assert rss_bytes() - before_bytes < RSS_BYTES_MAX
        assert held.queued_bytes_max < MIB
        answers = len(peer.pongs) + heard.codes.total() + heard.types["response.created"]
        assert answers >= count - WAITING_MAX
        assert set(heard.codes) == codes
        assert plain(await other.hear(3.0)) == alone
        assert not held.link.is_closed

    alone = plain(undisturbed(create()))
    run(main)


@pytest.mark.parametrize("name", ["empty frames", "appends", "creates"])
def test_flood_of_who_does_not_read_ends_its_link(name: str) -> None:
    async def main(scene: Scene) -> None:
        (peer, held), other = await scene.link(), await scene.peer()
        await other.say(create())
        await peer.ask(create(), patience_s=STALLED_S)
        Tally(peer)
        closed, rss_growth_bytes = await drown(peer, held, FLOODS[name][0] * 100_000)
        assert closed == SLOW_CONSUMER
        assert rss_growth_bytes < RSS_BYTES_MAX
        assert held.link.frames_in < 50_000
        check_bound(held, NARROW)
        assert plain(await other.hear(3.0)) == alone

    alone = plain(undisturbed(create()))
    run(main, NARROW)


def test_creates_on_every_lane_leave_room_for_others() -> None:
    """Of one link, sixteen sample; what waits for them is bounded, and another link goes first."""

    async def main(scene: Scene) -> None:
        (peer, held), other = await scene.link(), await scene.peer()
        heard = Tally(peer)
        lanes = [create(stream_id=f"lane{number}") for number in range(32)]
        await peer.ask(*lanes * 40)
        assert scene.runs.running == SAMPLING_MAX
        assert heard.types["response.created"] == SAMPLING_MAX
        waiting = 32 * WAITING_MAX + 16 - heard.types["response.created"]
        assert heard.codes == {"too_many_queued": 1_280 - SAMPLING_MAX - waiting}
        assert plain(await other.ask(create(), patience_s=3.0)) == alone
        assert scene.runs.running <= SAMPLING_MAX
        check_bound(held, DEFAULT_LIMITS)

    alone = plain(undisturbed(create()))
    run(main)


FRAMES_PER_ROUND_MAX = 2_000


def test_flood_leaves_the_loop_to_others() -> None:
    """Between two turns of the event loop only so many frames of one link are handled: else a
    flood stands still everybody's turns, although their events are the same in the end."""

    async def main(scene: Scene) -> None:
        peer, held = await scene.link()
        Tally(peer)
        link, most, before = held.link, 0, 0
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(peer.write(frame() * 20_000))
            while not writing.done() or link.frames_in < 20_000:
                most, before = max(most, link.frames_in - before), link.frames_in
                await asyncio.sleep(0)
        assert most <= FRAMES_PER_ROUND_MAX

    run(main)
