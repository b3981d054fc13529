"""Pings that went unanswered, frames that were too large, floods: what the field reported of real
sockets."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from agentloop.link.api import DEFAULT_LIMITS, MIB, LinkLimits
from tests.abuse.scene_kit import (
    STALLED_S,
    Scene,
    Tally,
    create,
    drown,
    plain,
    run,
    undisturbed,
)
from tests.abuse.socket_kit import CONTINUATION, PING, frame, text, until
from tests.conformance.heard import Event

# -- B09: pings while a Response is at work --------------------------------------------------------

PONG_S = 0.2
CALL: list[Event] = [{"call": {"name": "shell"}}]
QUICK: list[Event] = [{"text": "ok"}]
WAITING: dict[str, list[Event]] = {
    "prefill": [{"stall_ms": 5_000}, {"text": "at last"}],
    "suspended": CALL,
    "idle": QUICK,
}


@pytest.mark.parametrize("turn", WAITING.values(), ids=WAITING)
def test_b09_pongs_come_whatever_a_response_waits_for(turn: list[Event]) -> None:
    async def main(scene: Scene) -> None:
        peer = await scene.peer()
        heard = await peer.ask(create(turn), patience_s=0.1)
        for number in range(5):
            await peer.write(frame(b"%d" % number, PING))
            heard += await peer.hear(PONG_S)
            assert [payload for payload, _ in peer.pongs] == [b"%d" % n for n in range(number + 1)]
            await asyncio.sleep(1.0 - PONG_S)
        heard += await peer.hear(2.0)
        assert plain(heard) == alone

    alone = plain(undisturbed(create(turn)))
    run(main)


def test_b09_pongs_come_while_the_outbound_queue_is_full() -> None:
    """To the brim, with nothing that the kernel would take: the pong stands before the queue."""

    async def main(scene: Scene) -> None:
        peer, held = await scene.narrow_link()
        peer.stop_reading()
        while held.link.queued_bytes < limits.queue_bytes - 1_000:
            await peer.say(b"")
            await asyncio.sleep(0.0001)
        await peer.write(frame(b"still there?", PING))
        await asyncio.sleep(PONG_S)
        written_count, queued_bytes = held.link.frames_out, held.link.queued_bytes
        peer.read_on()
        await until(lambda: bool(peer.pongs))
        payload, before = peer.pongs[0]
        assert payload == b"still there?"
        assert queued_bytes > limits.queue_bytes // 2
        assert before <= written_count

    limits = LinkLimits(queue_bytes=MIB // 4, heartbeat_s=None)
    run(main, limits)


# -- B10: frames over the limit --------------------------------------------------------------------

LIMIT_BYTES = DEFAULT_LIMITS.message_bytes


def sized(size: int) -> bytes:
    """A create of exactly this many bytes, all but a few of them skipped."""
    empty = len(msgspec.json.encode(create(QUICK, skipped="")))
    return msgspec.json.encode(create(QUICK, skipped="x" * (size - empty)))


@pytest.mark.parametrize("size", [LIMIT_BYTES - 1, LIMIT_BYTES])
def test_b10_message_up_to_the_limit_is_taken(size: int) -> None:
    async def main(scene: Scene) -> None:
        peer = await scene.peer()
        assert (await peer.ask(sized(size), patience_s=3.0))[-1]["type"] == "response.done"

    run(main)


@pytest.mark.parametrize("is_whole", [True, False], ids=["one frame", "fragments"])
def test_b10_sender_of_more_reads_why_and_others_go_on(is_whole: bool) -> None:
    async def main(scene: Scene) -> None:
        peer, other = await scene.peer(), await scene.peer()
        await other.say(create())
        too_much = sized(LIMIT_BYTES + 1)
        half = LIMIT_BYTES // 2
        fragments = frame(too_much[:half], is_final=False) + frame(too_much[half:], CONTINUATION)
        await peer.write(text(too_much) if is_whole else fragments)  # all of it goes out
        assert await peer.hear_end() == (
            1009,
            f"message larger than the limit of {LIMIT_BYTES} bytes",
        )
        small = await (await scene.peer()).ask(create(QUICK), patience_s=3.0)
        assert small[-1]["type"] == "response.done"
        assert plain(await other.hear(3.0)) == alone

    alone = plain(undisturbed(create()))
    run(main)


# -- B46: floods of tiny frames --------------------------------------------------------------------

QUEUE_BYTES = 4 * MIB
RSS_BYTES_MAX = 2 * QUEUE_BYTES + 16 * MIB
TINY_CREATE = text({"type": "response.create", "model": "sim", "input": ""})


@pytest.mark.parametrize(
    ("one", "count"), [(frame(), 1_000_000), (TINY_CREATE, 100_000)], ids=["empty", "creates"]
)
def test_b46_flood_is_bounded_and_others_go_on(one: bytes, count: int) -> None:
    async def main(scene: Scene) -> None:
        (peer, held), other = await scene.link(), await scene.peer()
        await other.say(create())
        await peer.ask(create(), patience_s=STALLED_S)
        Tally(peer)
        closed, rss_growth_bytes = await drown(peer, held, one * count)
        assert closed == (1013, f"slow consumer: more than {QUEUE_BYTES} bytes unread")
        assert rss_growth_bytes < RSS_BYTES_MAX
        assert held.queued_bytes_max <= QUEUE_BYTES
        assert held.link.frames_in < count
        assert plain(await other.hear(3.0)) == alone

    alone = plain(undisturbed(create()))
    run(main, LinkLimits(queue_bytes=QUEUE_BYTES))
