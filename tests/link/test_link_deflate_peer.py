"""Compressed links (RFC 7692): what comes in, and what happens amid compressed messages."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc

import aiohttp
import msgspec
import pytest
from aiohttp import WSMsgType
from yarl import URL

from agentloop.link.api import DEFAULT_LIMITS, MIB, LinkLimits
from agentloop.link.websocket import WebSocketLink
from tests.link.conformance import expect_closed
from tests.link.deflate_kit import (
    CLOSE,
    DEFLATE,
    DEFLATED,
    PONG,
    SHORT,
    UNICODE,
    BareClient,
    Inflater,
    bare,
    client,
    compressing,
    deflated,
    noise,
    text,
)

# What comes in.


@pytest.mark.parametrize(
    "payload",
    ["f248cdc9c90700", "000500faff48656c6c6f00", "f348cdc9c9070000", "f24805000000ffffcac9c90700"],
)
async def test_the_examples_of_the_rfc_are_read(payload: str):
    async with bare() as (link, peer):
        peer.send(DEFLATED, bytes.fromhex(payload))
        assert await link.recv() == b"Hello"


async def test_the_clients_context_is_kept():
    async with bare() as (link, peer):
        for payload in ("f248cdc9c90700", "f200110000"):
            peer.send(DEFLATED, bytes.fromhex(payload))
            assert await link.recv() == b"Hello"


async def test_unicode_may_be_split_anywhere():
    payload = deflated(UNICODE)
    async with bare() as (link, peer):
        for at in range(len(payload) + 1):
            peer.send(0x41, payload[:at])
            peer.send(0x89, b"amid")
            peer.send(0x80, payload[at:])
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(link.recv())
                assert await peer.frame() == (PONG, b"amid")
            assert reading.result() == UNICODE
        for at in range(len(UNICODE)):  # and uncompressed, on the same link
            peer.send(0x01, UNICODE[:at])
            peer.send(0x80, UNICODE[at:])
            assert await link.recv() == UNICODE
        peer.send(0x41, payload[:1])
        peer.send(0xC0, payload[1:])  # only the first frame may say that it is compressed
        assert (await expect_closed(link)).close_code == 1002


async def test_bytes_may_come_one_by_one():
    async with bare() as (link, peer):
        sent = peer.encoded(DEFLATED, deflated(UNICODE))
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(link.recv())
            for byte in sent:
                peer.writer.write(bytes((byte,)))
                await asyncio.sleep(0)
        assert reading.result() == UNICODE


async def refused(link: WebSocketLink, peer: BareClient) -> tuple[int, int, str]:
    """How the link ended here, and code and reason of the close frame."""
    closed = await expect_closed(link)
    async with asyncio.TaskGroup() as group:
        group.create_task(link.close())
        first_byte, payload = await peer.frame()
        peer.writer.close()
    assert first_byte == CLOSE
    return closed.close_code, int.from_bytes(payload[:2], "big"), payload[2:].decode()


@pytest.mark.parametrize("beyond", [1, 2, 50_000_000])
async def test_a_bomb_is_answered_as_any_message_too_large(beyond: int):
    limit = DEFAULT_LIMITS.message_bytes
    async with bare(limits=DEFAULT_LIMITS) as (link, peer):
        peer.send(DEFLATED, deflated(bytes(limit)))
        assert await link.recv() == bytes(limit)
        peer.send(DEFLATED, deflated(bytes(limit + beyond)))
        peer.send(DEFLATED, deflated(b"behind it"))
        reason = f"message larger than the limit of {limit} bytes"
        assert await refused(link, peer) == (1009, 1009, reason)
        assert link.frames_in == 1


async def test_a_bomb_takes_no_memory_beyond_the_limit():
    bomb = deflated(bytes(100 * MIB))
    async with bare(limits=LinkLimits(message_bytes=MIB)) as (link, peer):
        peer.send(DEFLATED, bomb)
        tracemalloc.start()
        try:
            code, told_code, reason = await refused(link, peer)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (code, told_code) == (1009, 1009)
    assert "1048576" in reason
    assert peak_bytes < 4 * MIB


async def test_many_fragments_are_bounded_before_they_are_inflated():
    async with bare(limits=LinkLimits(message_bytes=1_000)) as (link, peer):
        peer.send(0x41, deflated(noise(600)))
        for _ in range(100):
            peer.send(0x00, noise(600))
        assert await refused(link, peer) == (
            1009, 1009, "message larger than the limit of 1000 bytes"
        )  # fmt: skip


@pytest.mark.parametrize(
    "payload",
    [b"\xff" * 20, b"\x07garbage", deflated(b"x" * 99)[::-1]],
    ids=["no-such-block", "no-such-code", "reversed"],
)
async def test_corrupt_data_ends_this_link_and_no_other(payload: bytes):
    async with compressing(SHORT) as (url, links):
        address = URL(url)
        peers = []
        for _ in range(2):
            peer = BareClient(*await asyncio.open_connection(address.host, address.port))
            await peer.upgrade(DEFLATE)
            peers.append((await links.get(), peer))
        (broken, culprit), (link, other) = peers
        culprit.send(DEFLATED, payload)
        assert await refused(broken, culprit) == (1007, 1007, "the compressed data is corrupt")
        other.send(DEFLATED, deflated(b"still here"))
        assert await link.recv() == b"still here"
        link.send([text(300)])
        assert Inflater().inflate((await other.frame())[1]) == text(300)
        other.writer.close()


# Beside control frames, and on the way to the end.


async def test_pings_are_answered_between_compressed_frames():
    async with client(autoping=False) as (link, peer), asyncio.TaskGroup() as group:
        reading = group.create_task(expect_closed(link))
        for number in range(10):
            link.send([text(300, number)])
            await peer.ping(b"%d" % number)
            link.send([text(70_000, number)])
            messages = [await peer.receive() for _ in range(3)]
            kinds = {message.type: message.data for message in messages}
            assert bytes(kinds[WSMsgType.PONG]) == b"%d" % number
            texts = [m.data.encode() for m in messages if m.type is WSMsgType.TEXT]
            assert texts == [text(300, number), text(70_000, number)]
        await peer.close()
        assert (await reading).close_code == 1000


async def test_b45_a_pong_first_and_then_compressed_text():
    async with client() as (link, peer):
        await peer.pong(b"unasked")
        await peer.send_str(UNICODE.decode())
        assert await link.recv() == UNICODE
        link.send([UNICODE])
        assert (await peer.receive()).data.encode() == UNICODE


async def test_a_compressed_link_says_goodbye_in_plain_words():
    async with bare(limits=DEFAULT_LIMITS) as (link, peer), asyncio.TaskGroup() as group:
        link.send([text(300)])
        group.create_task(link.close(1012, "x" * 100))
        assert Inflater().inflate((await peer.frame())[1]) == text(300)
        assert await peer.frame() == (CLOSE, (1012).to_bytes(2, "big") + b"x" * 100)
        peer.send(CLOSE, (1012).to_bytes(2, "big"))


async def test_a_slow_client_of_a_compressed_link_is_closed():
    async with bare(limits=LinkLimits(queue_bytes=MIB, close_timeout_s=0.05)) as (link, _):
        frame = noise(65_536)
        while not link.is_closed:
            link.send([frame])
            await asyncio.sleep(0)
        assert (await expect_closed(link)).close_code == 1013


def event(number: int, body: str) -> bytes:
    return msgspec.json.encode({"number": number, "delta": body})


async def next_numbers(peer: aiohttp.ClientWebSocketResponse, count: int) -> list[int]:
    return [msgspec.json.decode((await peer.receive()).data)["number"] for _ in range(count)]


async def test_b45_a_cancel_amid_a_large_compressed_event():
    """The sender of a 120 KB event is cancelled at any point of its way, also while the client
    reads nothing. All that was sent arrives whole and in order, and what follows after it."""
    body = text(20_000).decode() + "tail " * 20_000
    async with client(LinkLimits(queue_bytes=MIB)) as (link, peer):
        for end, option in ((link._transport, socket.SO_SNDBUF), (peer, socket.SO_RCVBUF)):
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 128 * 1024)
        sent: list[int] = []
        received = amid_count = 0

        async def send(number: int) -> None:
            await link.wait_drained()
            sent.append(number)
            link.send([event(number, body)])
            await link.wait_drained()
            await asyncio.Event().wait()

        for number in range(0, 2_000, 2):
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(send(number))
                await peer.send_str("cancel")
                for _ in range(number // 2 % 4):
                    await asyncio.sleep(0)
                assert await link.recv() == b"cancel"
                amid_count += link._transport.get_write_buffer_size() > 0
                sending.cancel()
            sent.append(number + 1)
            link.send([event(number + 1, "cancelled")])
            if number % 200 == 198:
                unread = sent[received:]
                assert await next_numbers(peer, len(unread)) == unread
                received = len(sent)
        assert amid_count > 100
        assert len(sent) > 1_500


async def test_b45_four_tasks_send_on_one_link():
    bodies = ["", text(40).decode(), text(300).decode(), text(7_000).decode() * 10]

    async def send(link: WebSocketLink, task: int) -> None:
        for number in range(250):
            await link.wait_drained()
            link.send([event(task * 1_000 + number, bodies[(task + number) % 4])])
            for _ in range((task + number) % 3):
                await asyncio.sleep(0)

    async with client(LinkLimits(queue_bytes=MIB)) as (link, peer):
        told: list[bytes] = []
        link.tap = lambda _, frame: told.append(frame)
        async with asyncio.TaskGroup() as group:
            for task in range(4):
                group.create_task(send(link, task))
            received = [(await peer.receive()).data.encode() for _ in range(1_000)]
        assert received == told
        numbers = [msgspec.json.decode(frame)["number"] for frame in received]
        for task in range(4):
            own = [number for number in numbers if number // 1_000 == task]
            assert own == [task * 1_000 + number for number in range(250)]
