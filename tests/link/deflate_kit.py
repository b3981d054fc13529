"""Two clients for compressed links: one that is not ours, and one that sees every byte."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import aiohttp
from yarl import URL

from agentloop.clock import WallClock
from agentloop.gate import Gate
from agentloop.link.api import DEFAULT_LIMITS, LinkLimits
from agentloop.link.websocket import WebSocketLink
from tests.link.test_link_websocket import accepting

DEFLATE = "permessage-deflate"
TEXT, DEFLATED, CLOSE, PONG = 0x81, 0xC1, 0x88, 0x8A
TAIL = b"\0\0\xff\xff"
SHORT = LinkLimits(close_timeout_s=0.02)
UNICODE = 'grüße, 世界, 🙂, \u2028: {"delta": "ß"} '.encode() * 2


def text(size: int, seed: int = 0) -> bytes:
    """ASCII that repeats itself about as much as prose does."""
    source = random.Random(seed)
    words = ["".join(source.choices("etaoinshrdlu", k=source.randint(2, 9))) for _ in range(400)]
    return " ".join(source.choices(words, k=size // 2 + 1))[:size].encode()


def noise(size: int, seed: int = 0) -> bytes:
    """ASCII that repeats nothing."""
    return random.Random(seed).randbytes(size // 2 + 1).hex()[:size].encode()


def deflated(payload: bytes) -> bytes:
    """A compressed message without context, as a client would send it."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (stream.compress(payload) + stream.flush(zlib.Z_SYNC_FLUSH)).removesuffix(TAIL)


class Inflater:
    """Reads a server's compressed messages as a peer with that window must be able to."""

    def __init__(self, window_bits: int = 15) -> None:
        self._stream = zlib.decompressobj(-window_bits)

    def inflate(self, payload: bytes) -> bytes:
        return self._stream.decompress(payload + TAIL)


class BareClient:
    """The client's end of a socket after its upgrade.

    Attributes:
        extensions: what the server's answer says of them.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.extensions: str | None = None
        self.writer = writer
        self._reader = reader

    async def upgrade(self, offer: str | None) -> None:
        offered = "" if offer is None else f"Sec-WebSocket-Extensions: {offer}\r\n"
        self.writer.write(
            "GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n"
            f"{offered}\r\n".encode()
        )
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        assert answer.startswith("HTTP/1.1 101 ")
        for line in answer.splitlines():
            name, _, value = line.partition(": ")
            if name.lower() == "sec-websocket-extensions":
                assert self.extensions is None
                self.extensions = value

    def send(self, first_byte: int, payload: bytes) -> None:
        self.writer.write(self.encoded(first_byte, payload))

    def encoded(self, first_byte: int, payload: bytes) -> bytes:
        size = len(payload)
        if size < 126:
            header = bytes((first_byte, 0x80 | size))
        elif size < 65_536:
            header = bytes((first_byte, 0x80 | 126)) + size.to_bytes(2, "big")
        else:
            header = bytes((first_byte, 0x80 | 127)) + size.to_bytes(8, "big")
        return header + bytes(4) + payload  # masked with zeros

    async def frame(self) -> tuple[int, bytes]:
        """First byte and payload of the next frame; the length is written as short as it can be."""
        first_byte, size = await self._reader.readexactly(2)
        assert size < 128, "a server's frames are not masked"
        for flag, width, least in ((126, 2, 126), (127, 8, 65_536)):
            if size == flag:
                size = int.from_bytes(await self._reader.readexactly(width), "big")
                assert size >= least
                break
        return first_byte, await self._reader.readexactly(size)


def compressing(
    limits: LinkLimits = DEFAULT_LIMITS, *, compresses: bool = True
) -> AbstractAsyncContextManager[tuple[str, asyncio.Queue[WebSocketLink]]]:
    """An address, and the server's links that were made to it."""
    return accepting(limits, WallClock(), Gate(), compresses=compresses)


@asynccontextmanager
async def bare(
    offer: str | None = DEFLATE,
    limits: LinkLimits = SHORT,
    *,
    compresses: bool = True,
) -> AsyncIterator[tuple[WebSocketLink, BareClient]]:
    """A server's link and a bare client that has made this offer."""
    async with compressing(limits, compresses=compresses) as (url, links):
        address = URL(url)
        client = BareClient(*await asyncio.open_connection(address.host, address.port))
        try:
            await client.upgrade(offer)
            yield await links.get(), client
        finally:
            client.writer.close()
            with suppress(ConnectionError):
                await client.writer.wait_closed()


@asynccontextmanager
async def client(
    limits: LinkLimits = DEFAULT_LIMITS, **options: Any
) -> AsyncIterator[tuple[WebSocketLink, aiohttp.ClientWebSocketResponse]]:
    """A server's link and aiohttp's client."""
    async with (
        compressing(limits) as (url, links),
        aiohttp.ClientSession() as session,
        session.ws_connect(url, max_msg_size=0, **{"compress": 15, **options}) as peer,
    ):
        link = await links.get()
        yield link, peer
        async with asyncio.TaskGroup() as group:
            group.create_task(link.close())
            group.create_task(peer.close())
