"""What a hostile peer can do to a real socket, and that nobody else hears of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import pytest

from agentloop.link.api import DEFAULT_LIMITS, LinkLimits
from tests.abuse.scene_kit import (
    STALLED_S,
    WHEN,
    Scene,
    create,
    of_turn,
    plain,
    run,
    undisturbed,
)
from tests.abuse.socket_kit import (
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    Peer,
    frame,
    text,
)
from tests.conformance.heard import Event, check_response

DETACHABLE: Event = {"agent_loop": {"detach_ttl_s": 3_600.0}}
QUICK: list[Event] = [{"text": "ok"}]
CALL: list[Event] = [{"call": {"name": "shell"}}]
LONG: list[Event] = [{"text": "so"}, {"stall_ms": 3_600_000}, {"text": "late"}]
DETACHED = ("response.incomplete", "detached")
COMPLETED = ("response.completed", None)
ABORTED_S = 0.2  # an engine is aborted within this long after its link was lost
assert DEFAULT_LIMITS.heartbeat_s is not None
FOUND_S = DEFAULT_LIMITS.heartbeat_s * 1.5 + 2  # a silent peer is given up by then

# -- frames that RFC 6455 forbids, and unusual ones that it allows ---------------------------------

BROKEN: dict[str, tuple[bytes, int]] = {
    **{f"reserved bits {bits}": (frame(b"{}", reserved=bits), 1002) for bits in (1, 2, 4, 7)},
    **{f"opcode {code}": (frame(b"{}", code), 1002) for code in (3, 7, 11, 15)},
    "ping of 126 bytes": (frame(b"p" * 126, PING), 1002),
    "pong of 126 bytes": (frame(b"p" * 126, PONG), 1002),
    "ping in fragments": (frame(b"p", PING, is_final=False), 1002),
    "continuation of nothing": (frame(b"{}", CONTINUATION), 1002),
    "message within a message": (frame(b"{", is_final=False) + frame(b"{}"), 1002),
    "close of one byte": (frame(b"\x03", CLOSE), 1002),
    "close with a code that is never sent": (frame(b"\x03\xed", CLOSE), 1002),
    "close with invalid UTF-8": (frame(b"\x03\xe8\xff", CLOSE), 1007),
    "a size beyond 63 bits": (frame(claimed_size=2**63), 1009),
    "the largest size": (frame(claimed_size=2**63 - 1), 1009),
    "another protocol": (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", 1002),
}


@WHEN
def test_broken_frame_ends_its_link_alone(is_running: bool) -> None:
    async def main(scene: Scene) -> None:
        for name, (broken, code) in BROKEN.items():
            peer, other = await scene.peer(), await scene.peer()
            await other.say(create())
            heard = await peer.ask(create(LONG), patience_s=STALLED_S) if is_running else []
            await peer.write(broken)
            closed = await peer.hear_end()
            assert closed is not None, name
            assert closed[0] == code, name
            await asyncio.sleep(ABORTED_S)
            if is_running:
                assert scene.runs.ended[-1][0] == "cancel", name
                assert await scene.terminal(heard[0]["response"]["id"]) == DETACHED, name
            assert plain(await other.hear(3.0)) == alone, name

    alone = plain(undisturbed(create()))
    run(main)


WHOLE = msgspec.json.encode(create(QUICK, stream_id="b"))
UNUSUAL: dict[str, list[bytes]] = {
    "a mask": [frame(WHOLE, mask=b"\x12\x34\x56\x78")],
    "half a frame, then the rest": [text(WHOLE)[:100], text(WHOLE)[100:]],
    "a header in halves": [text(WHOLE)[:1], text(WHOLE)[1:3], text(WHOLE)[3:]],
    "byte by byte": [bytes((byte,)) for byte in text(WHOLE)],
    "fragments": [
        frame(WHOLE[:7], is_final=False),
        frame(b"", CONTINUATION, is_final=False),
        frame(WHOLE[7:9], CONTINUATION, is_final=False),
        frame(WHOLE[9:], CONTINUATION),
    ],
    "a fragment a byte": [
        frame(WHOLE[:1], is_final=False),
        *(frame(WHOLE[i : i + 1], CONTINUATION, is_final=False) for i in range(1, len(WHOLE))),
        frame(b"", CONTINUATION),
    ],
    "pings between fragments": [
        frame(WHOLE[:9], is_final=False),
        frame(b"1", PING),
        frame(b"2", PING) + frame(WHOLE[9:], CONTINUATION),
    ],
    "pongs that nobody asked for": [frame(b"p" * 125, PONG), text(WHOLE), frame(b"", PONG)],
    "pings of every size": [*(frame(b"p" * size, PING) for size in range(126)), text(WHOLE)],
}


@WHEN
def test_unusual_frames_are_taken_like_any_other(is_running: bool) -> None:
    async def main(scene: Scene) -> None:
        for name, writes in UNUSUAL.items():
            peer = await scene.peer()
            heard = await peer.ask(create(), patience_s=STALLED_S) if is_running else []
            for data in writes:
                await peer.write(data)
                await asyncio.sleep(0.0001)
            heard += await peer.hear(3.0)
            on_lane = [event["type"] for event in heard if event.get("stream_id") == "b"]
            assert (on_lane[0], on_lane[-1]) == ("response.created", "response.done"), name
            assert not is_running or plain(of_turn(heard)) == alone, name
            pings = [data for write in writes for data in pings_of(write)]
            assert [payload for payload, _ in peer.pongs] == pings, name

    alone = plain(undisturbed(create()))
    run(main)


def pings_of(write: bytes) -> list[bytes]:
    """The payload of the ping that these bytes begin with."""
    is_ping = write[:1] == frame(opcode=PING)[:1]
    return [write[6 : 6 + (write[1] & 0x7F)]] if is_ping else []


@WHEN
def test_unmasked_frame_harms_nobody(is_running: bool) -> None:
    """RFC 6455 has the server hang up (5.1); to take it like any other is as good."""

    async def main(scene: Scene) -> None:
        peer, other = await scene.peer(), await scene.peer()
        await other.say(create())
        if is_running:
            await peer.ask(create(), patience_s=STALLED_S)
        await peer.write(frame(WHOLE, mask=None))
        heard = await peer.hear(3.0)
        assert (peer.closed or (1002, ""))[0] == 1002
        assert peer.closed or heard[-1]["type"] == "response.done"
        assert plain(await other.hear()) == alone

    alone = plain(undisturbed(create()))
    run(main)


# -- sizes -----------------------------------------------------------------------------------------

LIMIT_BYTES = 64 * 1024


def sized(size: int) -> bytes:
    """A create of exactly this many bytes, on a lane of its own."""
    empty = len(msgspec.json.encode(create(QUICK, stream_id="b", instructions="")))
    return msgspec.json.encode(create(QUICK, stream_id="b", instructions="x" * (size - empty)))


def in_fragments(payload: bytes) -> bytes:
    first, rest = payload[:50_000], payload[50_000:]
    return frame(first, is_final=False) + frame(rest, CONTINUATION)


@WHEN
@pytest.mark.parametrize("write", [frame, in_fragments], ids=["one frame", "fragments"])
def test_largest_message_is_taken_and_a_larger_one_names_the_limit(
    write: Callable[[bytes], bytes], is_running: bool
) -> None:
    async def main(scene: Scene) -> None:
        for size in (LIMIT_BYTES - 1, LIMIT_BYTES, LIMIT_BYTES + 1):
            peer, other = await scene.peer(), await scene.peer()
            await other.say(create())
            heard = await peer.ask(create(), patience_s=STALLED_S) if is_running else []
            response_id = heard[0]["response"]["id"] if is_running else None
            await peer.write(write(sized(size)))
            heard += await peer.hear(5.0)
            if size <= LIMIT_BYTES:
                assert peer.closed is None
                assert not is_running or plain(of_turn(heard)) == alone
                assert "b" in [event.get("stream_id") for event in heard]
            else:
                assert peer.closed is not None
                assert peer.closed[0] == 1009
                assert f"{LIMIT_BYTES} bytes" in peer.closed[1]
                assert response_id is None or await scene.terminal(response_id) == DETACHED
            assert plain(await other.hear(5.0)) == alone
            await (await scene.peer()).say(create(QUICK))

    alone = plain(undisturbed(create()))
    run(main, LinkLimits(message_bytes=LIMIT_BYTES))


# -- peers that go ---------------------------------------------------------------------------------

Leave = Callable[[Peer], Awaitable[None]]


async def reset(peer: Peer) -> None:
    peer.reset()


async def hang_up(peer: Peer) -> None:
    peer.close()


async def only_read(peer: Peer) -> None:
    peer.stop_writing()


async def say_goodbye(peer: Peer) -> None:
    await peer.write(frame(b"\x03\xe8", CLOSE))


async def break_the_protocol(peer: Peer) -> None:
    await peer.write(frame(b"{}", reserved=4))


async def say_too_much(peer: Peer) -> None:
    await peer.write(frame(claimed_size=DEFAULT_LIMITS.message_bytes + 1))


async def hang_up_in_a_frame(peer: Peer) -> None:
    await peer.write(frame(b"half", claimed_size=8))
    peer.close()


async def fall_silent(peer: Peer) -> None:
    peer.fall_silent()


async def fall_silent_in_a_frame(peer: Peer) -> None:
    await peer.write(frame(b"half", claimed_size=8))
    peer.fall_silent()


async def fall_silent_in_a_header(peer: Peer) -> None:
    await peer.write(text(b"{}")[:1])
    peer.fall_silent()


async def ping_and_hang_up(peer: Peer) -> None:
    await peer.write(frame(b"?", PING) * 1_000)
    peer.close()


async def ping_and_fall_silent(peer: Peer) -> None:
    """More pings than there is room for their pongs."""
    peer.fall_silent()
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await peer.write(frame(b"p" * 125, PING) * 10_000)


SILENT: list[Leave] = [
    fall_silent,
    fall_silent_in_a_frame,
    fall_silent_in_a_header,
    ping_and_fall_silent,
]
AT_ONCE: list[Leave] = [
    reset,
    hang_up,
    only_read,
    say_goodbye,
    break_the_protocol,
    say_too_much,
    hang_up_in_a_frame,
    ping_and_hang_up,
]
LEAVING = pytest.mark.parametrize("leave", [*AT_ONCE, *SILENT], ids=lambda each: each.__name__)


async def gone(scene: Scene, leave: Leave, frame: Event) -> str:
    """A Response whose peer has gone, and the server knows it."""
    peer, held = await (scene.narrow_link() if leave is ping_and_fall_silent else scene.link())
    heard = await peer.ask(frame, patience_s=STALLED_S)
    await leave(peer)
    await asyncio.sleep(FOUND_S if leave in SILENT else 0.001)
    assert held.link.is_closed
    response_id: str = heard[0]["response"]["id"]
    return response_id


@LEAVING
def test_peer_that_goes_ends_what_is_not_detachable(
    leave: Leave, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(scene: Scene) -> None:
        for turn, terminal in ((LONG, DETACHED), (CALL, DETACHED), (QUICK, COMPLETED)):
            response_id = await gone(scene, leave, create(turn))
            await asyncio.sleep(ABORTED_S)
            assert scene.runs.running == 0
            assert await scene.terminal(response_id) == terminal
            check_response(await scene.replayed(response_id))
        assert scene.runs.reasons == ["cancel", "stop", "stop"]
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR]

    run(main)


@LEAVING
def test_peer_that_goes_leaves_a_detachable_response_at_work(leave: Leave) -> None:
    async def main(scene: Scene) -> None:
        response_id = await gone(scene, leave, create(**DETACHABLE))
        await asyncio.sleep(3.0)
        peer = await scene.peer()
        attach = {"type": "response.attach", "response_id": response_id}
        attached, *heard, _ = await peer.ask(attach)
        assert attached["state"] == "suspended"
        assert plain(heard) == alone
        call_id = attached["pending_tool_calls"][0]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "ok"}
        heard = await peer.ask({"type": "response.append", "input": [output]}, patience_s=3.0)
        assert heard[-1]["response"]["state"] == "idle"
        assert scene.runs.reasons == ["stop", "stop"]

    alone = plain(undisturbed(create(**DETACHABLE)))
    run(main)


def test_silent_peer_is_not_given_up_before_its_time() -> None:
    async def main(scene: Scene) -> None:
        peer, held = await scene.link()
        heard = await peer.ask(create(LONG), patience_s=STALLED_S)
        peer.fall_silent()
        await asyncio.sleep(FOUND_S - 5 * STALLED_S)
        assert not held.link.is_closed
        assert scene.live(heard[0]["response"]["id"]).is_open

    run(main)
