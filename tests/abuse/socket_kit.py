"""A WebSocket client of raw bytes, for servers in virtual time.

It can say what no library would: half frames, wrong opcodes, reserved bits. It can stop reading,
reset its connection, or stay and never answer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from yarl import URL

from tests.conformance.heard import Event
from tests.conformance.runner import SETTLE_S

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NO_MASK = bytes(4)  # a mask all the same, and the payload stays readable
SMALL_BUFFER_BYTES = 32 * 1024
_READ_BYTES = 256 * 1024
_UPGRADE = (
    "GET /v1/responses?protocol=append HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)

# -- frames ----------------------------------------------------------------------------------------


def frame(
    payload: bytes = b"",
    opcode: int = TEXT,
    *,
    is_final: bool = True,
    reserved: int = 0,
    mask: bytes | None = NO_MASK,
    claimed_size: int | None = None,
) -> bytes:
    """One frame as a client writes it (RFC 6455, 5.2), or as none should.

    Args:
        reserved: the three reserved bits, as a number.
        mask: None leaves the frame unmasked.
        claimed_size: what the header says instead of the payload's own size.
    """
    size = len(payload) if claimed_size is None else claimed_size
    first, mask_bit = is_final << 7 | reserved << 4 | opcode, 0x80 * (mask is not None)
    if size < 126:
        header = bytes((first, mask_bit | size))
    elif size < 65536:
        header = struct.pack("!BBH", first, mask_bit | 126, size)
    else:
        header = struct.pack("!BBQ", first, mask_bit | 127, size)
    if mask is not None and any(mask):
        payload = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return header + (mask or b"") + payload


def text(message: Event | bytes) -> bytes:
    """One text frame; bytes go as they are."""
    return frame(message if isinstance(message, bytes) else msgspec.json.encode(message))


def split(data: bytes, start: int) -> tuple[int, bytes, int] | None:
    """Opcode, payload and end of the frame at `start`, where it is all there. A server neither
    masks nor fragments."""
    if len(data) < start + 2:
        return None
    size, begin = data[start + 1], start + 2
    if size == 126:
        size, begin = int.from_bytes(data[begin : begin + 2], "big"), begin + 2
    elif size == 127:
        size, begin = int.from_bytes(data[begin : begin + 8], "big"), begin + 8
    end = begin + size
    return (data[start] & 0x0F, data[begin:end], end) if len(data) >= end else None


async def until(is_met: Callable[[], bool]) -> None:
    """Let time pass until this holds: a little at a time, so that the kernel, which knows nothing
    of virtual time, keeps up when its buffers are full."""
    for _ in range(100_000):
        if is_met():
            return
        await asyncio.sleep(0.001)
    pytest.fail("it never came")


# -- the client ------------------------------------------------------------------------------------


class Peer:
    """One raw connection. It reads whatever comes, until it is told to stop.

    Attributes:
        keep: what is done with each text frame; by default it becomes one of `events`.
        events: the text frames that were kept, decoded.
        pongs: payload of each pong, and how many text frames had come before it.
        closed: code and reason of the server's goodbye.
        is_ended: the connection is gone.
        answers_pings: it sends the pongs that it owes.
    """

    def __init__(self, sock: socket.socket, *, answers_pings: bool) -> None:
        self.keep: Callable[[bytes], None] = self._keep_event
        self.events: list[Event] = []
        self.pongs: list[tuple[bytes, int]] = []
        self.closed: tuple[int, str] | None = None
        self.is_ended = False
        self.answers_pings = answers_pings
        self._text_count = 0
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._arrived = asyncio.Event()
        self.read_on()

    @classmethod
    async def open(
        cls, url: str, *, receive_buffer_bytes: int | None = None, answers_pings: bool = True
    ) -> Peer:
        """Connect and upgrade."""
        address = URL(url)
        sock = socket.socket()
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # no kernel timer holds bytes
        sock.connect((address.host, address.port))
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, _UPGRADE.format(host=address.authority).encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += await loop.sock_recv(sock, 1)
        assert answer.startswith(b"HTTP/1.1 101")
        return cls(sock, answers_pings=answers_pings)

    # -- saying --------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Exactly these bytes, or as many as the server takes before it hangs up."""
        with suppress(ConnectionError):
            await self._loop.sock_sendall(self._socket, data)

    async def say(self, *messages: Event | bytes) -> None:
        """Each as a text frame, all in one write."""
        await self.write(b"".join(map(text, messages)))

    async def ask(self, *messages: Event | bytes, patience_s: float = SETTLE_S) -> list[Event]:
        """Say this, and hear all that comes of it."""
        await self.say(*messages)
        return await self.hear(patience_s)

    # -- hearing -------------------------------------------------------------------------------

    async def hear(self, patience_s: float = SETTLE_S) -> list[Event]:
        """All that was said since the last time, once nothing came for that long."""
        while await self._wait(patience_s):
            pass
        heard, self.events = self.events, []
        return heard

    async def _wait(self, patience_s: float) -> bool:
        """Whether anything came within that time."""
        self._arrived.clear()
        if self.is_ended:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                return await self._arrived.wait()
        return False

    async def hear_end(self) -> tuple[int, str] | None:
        """Read until the server hangs up. Returns its goodbye, if there was one."""
        await until(lambda: self.is_ended or self.closed is not None)
        return self.closed

    def stop_reading(self) -> None:
        """Nothing is taken from the kernel any more."""
        self._loop.remove_reader(self._socket)

    def read_on(self) -> None:
        """Take what comes."""
        self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self.is_ended = True
            self.stop_reading()
        self._received += data
        self._take_frames()
        self._arrived.set()

    def _take_frames(self) -> None:
        data, start = bytes(self._received), 0
        self._received.clear()
        while (found := split(data, start)) is not None:
            opcode, payload, start = found
            self._take(opcode, payload)
        self._received += data[start:]

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == TEXT:
            self._text_count += 1
            self.keep(payload)
        elif opcode == PONG:
            self.pongs.append((payload, self._text_count))
        elif opcode == CLOSE:
            self.closed = int.from_bytes(payload[:2], "big"), payload[2:].decode()
        elif opcode == PING and self.answers_pings:
            with suppress(OSError):
                self._socket.send(frame(payload, PONG))

    def _keep_event(self, payload: bytes) -> None:
        self.events.append(msgspec.json.decode(payload))

    # -- leaving -------------------------------------------------------------------------------

    def fall_silent(self) -> None:
        """As behind a network that swallows everything: the connection stays, and no byte comes
        or goes any more."""
        self.answers_pings = False
        self.stop_reading()

    def reset(self) -> None:
        """Gone with a TCP reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Gone, without a WebSocket goodbye."""
        self.is_ended = True
        if self._socket.fileno() >= 0:
            self.stop_reading()
            self._socket.close()

    def stop_writing(self) -> None:
        """Half closed: it only reads."""
        self._socket.shutdown(socket.SHUT_WR)
