"""The WebSocket link keeps every link's promises over real sockets, and RFC 6455's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import WSMsgType, web
from yarl import URL

from agentloop.clock import Clock, WallClock, run_virtual
from agentloop.errors import LinkClosed, ProtocolError
from agentloop.gate import Gate
from agentloop.link.api import DEFAULT_LIMITS, LinkLimits
from agentloop.link.websocket import WebSocketLink, accept, connect
from tests.link.conformance import CHECKS, Check, Pair, check_link, expect_closed

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """The address of a server that answers everything with `handler`."""
    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"ws://{host}:{port}/"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def accepting(
    limits: LinkLimits, clock: Clock, gate: Gate, *, compresses: bool = False
) -> AsyncIterator[tuple[str, asyncio.Queue[WebSocketLink]]]:
    """An address, and the server's halves of the links made to it."""
    links: asyncio.Queue[WebSocketLink] = asyncio.Queue()
    over = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        link = await accept(request, clock=clock, gate=gate, limits=limits, compresses=compresses)
        links.put_nowait(link)
        await over.wait()
        await link.close()
        return link.response

    async with serving(handle) as url:
        try:
            yield url, links
        finally:
            over.set()
            await asyncio.sleep(0)


@asynccontextmanager
async def make_pair(limits: LinkLimits) -> AsyncIterator[Pair]:
    clock, gate = WallClock(), Gate()
    async with accepting(limits, clock, gate) as (url, links):
        client = await connect(url, clock=clock, limits=limits)
        server = await links.get()
        try:
            yield Pair(server, client, gate, clock)
        finally:
            async with asyncio.TaskGroup() as group:
                group.create_task(server.close())
                group.create_task(client.close())


@asynccontextmanager
async def plain_client(
    limits: LinkLimits = DEFAULT_LIMITS, **options: Any
) -> AsyncIterator[tuple[WebSocketLink, aiohttp.ClientWebSocketResponse]]:
    """A server's link, and a client that is not ours."""
    async with (
        accepting(limits, WallClock(), Gate()) as (url, links),
        aiohttp.ClientSession() as session,
        session.ws_connect(url, **options) as peer,
    ):
        link = await links.get()
        yield link, peer
        async with asyncio.TaskGroup() as group:
            group.create_task(link.close())
            group.create_task(peer.close())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_websocket_keeps_the_promise(check: Check):
    await check(make_pair)


class CountingTransport:
    """Counts writes and passes everything on."""

    def __init__(self, transport: Any) -> None:
        self.writes = 0
        self._transport = transport

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_what_is_due_leaves_in_one_write():
    async with make_pair(DEFAULT_LIMITS) as pair:
        transport = CountingTransport(pair.a._transport)  # type: ignore[attr-defined]
        pair.a._transport = transport  # type: ignore[attr-defined]
        for number in range(50):
            pair.a.send([b"%d" % number])
        pair.a.send([b"held"], 1)
        assert [await pair.b.recv() for _ in range(50)] == [b"%d" % n for n in range(50)]
        assert transport.writes == 1
        for number in range(50):
            pair.a.send([b"%d" % number], 1)
        pair.gate.advance(1)
        assert await pair.b.recv() == b"held"
        assert transport.writes == 2


async def test_binary_frames_are_an_error_and_the_link_stays():
    async with plain_client() as (link, peer):
        await peer.send_bytes(b"\x00\x01")
        await peer.send_str("text")
        with pytest.raises(ProtocolError, match="text frames only"):
            await link.recv()
        assert await link.recv() == b"text"
        assert (link.frames_in, link.is_closed) == (1, False)


async def test_pings_are_answered_between_frames():
    async with plain_client(autoping=False) as (link, peer), asyncio.TaskGroup() as group:
        reading = group.create_task(link.recv())
        await peer.ping(b"are you there?")
        message = await peer.receive()
        assert (message.type, bytes(message.data)) == (WSMsgType.PONG, b"are you there?")
        await peer.send_str("done")
        assert await reading == b"done"


async def test_fragmented_messages_arrive_whole():
    async with plain_client() as (link, peer):
        writer = peer._writer
        writer.transport.write(b"\x01\x83\0\0\0\0one\x89\x80\0\0\0\0\x80\x84\0\0\0\0-two")
        assert await link.recv() == b"one-two"


async def test_an_offer_to_compress_is_refused():
    async with plain_client(compress=15) as (link, peer):
        assert peer.compress == 0
        link.send([b"plain"])
        assert (await peer.receive()).data == "plain"


async def test_a_broken_frame_ends_the_link_with_1002():
    async with plain_client() as (link, peer):
        peer._writer.transport.write(b"\xf1\x80\0\0\0\0")
        with pytest.raises(LinkClosed) as caught:
            await link.recv()
        assert caught.value.close_code == 1002


async def test_a_close_without_a_code_is_1005_and_a_cut_one_still_utf8():
    async with plain_client() as (link, peer):
        peer._writer.transport.write(b"\x88\x80\0\0\0\0")
        assert (await expect_closed(link)).close_code == 1005
    async with plain_client() as (link, peer), asyncio.TaskGroup() as group:
        group.create_task(link.close(1008, "ü" * 100))
        message = await peer.receive()
        assert (message.data, message.extra) == (1008, "ü" * 61)


@pytest.mark.parametrize("side", ["server", "client"])
async def test_every_close_waits_for_the_peers_answer(side: str):
    async with make_pair(DEFAULT_LIMITS) as pair:
        closer, other = (pair.a, pair.b) if side == "server" else (pair.b, pair.a)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(closer.recv())
            await asyncio.sleep(0)
            reading.cancel()  # aiohttp would take this for a lost connection
        async with asyncio.TaskGroup() as group:
            closing = [group.create_task(closer.close(code)) for code in (1001, 1000)]
            for _ in range(20):
                await asyncio.sleep(0)
            assert not any(task.done() for task in closing)
            assert (await expect_closed(other)).close_code == 1001
            await other.close()


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


async def test_the_sender_of_an_oversized_message_can_finish_and_then_read_why():
    loop, size = asyncio.get_running_loop(), 8_000_000
    header = b"\x81\xff" + size.to_bytes(8, "big") + bytes(4)
    limits = LinkLimits(message_bytes=1000, close_timeout_s=60)
    async with accepting(limits, WallClock(), Gate()) as (url, links), asyncio.TaskGroup() as group:
        address = URL(url)
        with socket.create_connection((address.host, address.port)) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, UPGRADE)
            while not (await loop.sock_recv(client, 1000)).endswith(b"\r\n\r\n"):
                pass
            link = await links.get()
            sending = group.create_task(loop.sock_sendall(client, header + b"x" * size))
            closed = await expect_closed(link)
            closing = group.create_task(link.close())
            await sending  # though nobody wants it any more
            answer = b""
            while received := await loop.sock_recv(client, 1000):
                answer += received
            assert not closing.done()  # it waits for the client to go, not for the time-out
        assert answer == b"\x88\x2d\x03\xf1message larger than the limit of 1000 bytes"
        assert closed.close_code == 1009


async def test_a_silent_peer_is_given_up():
    limits = LinkLimits(heartbeat_s=0.02, close_timeout_s=0.05)
    async with plain_client(limits, autoping=False) as (link, _):
        link.send([b"x" * 1_000_000] * 8)  # it does not even read
        closed = await expect_closed(link)
        assert closed.close_code == 1006
        assert "PONG" in closed.message
        await link.close()
        assert link._transport.get_write_buffer_size() == 0  # nothing waits for it any longer


async def test_a_peer_that_never_reads_bounds_the_close():
    async with plain_client(LinkLimits(close_timeout_s=0.02)) as (link, _):
        link.send([b"x" * 8_000_000])
        link.send([b"x" * 8_000_000])
        await link.close()
        assert link.queued_bytes == 0


async def test_a_cancelled_close_cuts():
    async with plain_client() as (link, peer), asyncio.TaskGroup() as group:
        closing = group.create_task(link.close())
        await asyncio.sleep(0)
        closing.cancel()
        message = await peer.receive()
        assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED)
        assert link.is_closed


@pytest.mark.parametrize("status", [401, 404, 426, 503])
async def test_a_refused_upgrade_says_its_status(status: int):
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    async with serving(refuse) as url:
        with pytest.raises(LinkClosed, match=f"refused .* {status}") as caught:
            await connect(url, clock=WallClock())
    assert caught.value.status == status


async def test_no_server_and_no_answer_are_a_closed_link():
    writers: list[asyncio.StreamWriter] = []
    async with serving(accept) as url:  # type: ignore[arg-type]
        pass
    with pytest.raises(LinkClosed, match="cannot connect to ws://127"):
        await connect(url, clock=WallClock())
    silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    async with silent:
        host, port = silent.sockets[0].getsockname()
        limits = LinkLimits(connect_timeout_s=0.02)
        with pytest.raises(LinkClosed, match="TimeoutError"):
            await connect(f"ws://{host}:{port}/", clock=WallClock(), limits=limits)
        for writer in writers:
            writer.close()
            await writer.wait_closed()


async def test_a_host_that_is_no_name_is_a_closed_link():
    with pytest.raises(LinkClosed, match="cannot connect to ws://a"):
        await connect("ws://a..b:1", clock=WallClock())


async def test_headers_travel_both_ways():
    seen: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        options: Any = {"clock": WallClock(), "gate": Gate(), "headers": {"x-request-id": "r1"}}
        link = await accept(request, **options)
        await link.close()
        return link.response

    async with serving(handle) as url:
        client = await connect(url, clock=WallClock(), headers={"Authorization": "Bearer k"})
        assert (await expect_closed(client)).close_code == 1000
        await client.close()
        async with aiohttp.ClientSession() as session:
            headers = {"Authorization": "Bearer k"}
            async with session.ws_connect(url, headers=headers) as peer:
                assert peer._response.headers["x-request-id"] == "r1"
    assert seen == ["Bearer k", "Bearer k"]


def test_a_session_in_virtual_time():
    async def main(clock: Clock) -> tuple[list[bytes], float]:
        gate = Gate()
        async with accepting(DEFAULT_LIMITS, clock, gate) as (url, links):
            client = await connect(url, clock=clock)
            server = await links.get()
            received = []
            for number in range(100):
                client.send([b"%d" % number])
                received.append(await server.recv())
                await clock.sleep(60)
                server.send([b"answer " + received[-1]], number + 1)
                gate.advance(number + 1)
                received.append(await client.recv())
            async with asyncio.TaskGroup() as group:
                group.create_task(server.close())
                await expect_closed(client)
                await client.close()
            return received, clock.now()

    received, now_s = run_virtual(main)
    assert received[-2:] == [b"99", b"answer 99"]
    assert now_s >= 6000


def test_websocket_keeps_every_promise_on_uvloop():
    uvloop.run(check_link(make_pair))
