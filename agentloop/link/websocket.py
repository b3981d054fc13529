"""WebSocket links (RFC 6455) over aiohttp, for both sides.

aiohttp shakes hands, reads, inflates, answers pings and closes. Text frames are built here and
given to the transport directly, many in one write: aiohttp has no call for several frames, and a
write costs ten times as much as the frame in it. That is sound because a write holds only whole
frames, and because aiohttp writes nothing but control frames, which are never compressed.

A server may agree to compress a link; `connect` never asks for it. Limits, counters, queue and tap
speak of the messages as they are, not of what deflating makes of them.
"""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections.abc import Callable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
from aiohttp import WSMsgType, hdrs, web

from agentloop.errors import LinkClosed, ProtocolError
from agentloop.gate import Gate
from agentloop.link.api import (
    CONNECTION_LOST,
    DEFAULT_LIMITS,
    NO_STATUS,
    NORMAL,
    TOO_BIG,
    LinkLimits,
)
from agentloop.link.base import BaseLink, too_big_reason
from agentloop.link.deflate import DEFLATED_BYTES_MAX, DEFLATED_BYTES_MIN, Deflater, is_sound

if TYPE_CHECKING:
    from agentloop.clock import Clock

_TEXT, _CLOSE = 0x81, 0x88  # FIN and opcode
_DEFLATED_TEXT = 0xC1  # and RSV1 (RFC 7692, 6)
_MASKED = 0x80
_MASK_BYTES = 4
_REASON_BYTES_MAX = 123  # a control frame holds 125, and the code takes two

# Written and not yet taken by the kernel. Enough to keep a fast peer busy until the next look,
# little enough for thousands of slow ones.
_TRANSPORT_BYTES_MAX = 256 * 1024
_RECHECK_S_MIN, _RECHECK_S_MAX = 0.001, 0.064
_LINGER_RECHECK_S = 0.01
# Deflated in one turn of the event loop, as the outbox counts: a millisecond or two, but for a
# frame that is larger by itself.
_TURN_BYTES_MAX = 64 * 1024

_CORRUPT = 1007, "the compressed data is corrupt"  # RFC 6455, 7.4.1

_pack_medium = Struct("!BBH").pack
_pack_long = Struct("!BBQ").pack
# The headers of nearly all frames, by size: looking one up costs a third of packing it.
_HEADERS = tuple(
    bytes((_TEXT, size)) if size < 126 else _pack_medium(_TEXT, 126, size) for size in range(4_096)
)


async def accept(
    request: web.Request,
    *,
    clock: Clock,
    gate: Gate,
    limits: LinkLimits = DEFAULT_LIMITS,
    headers: Mapping[str, str] | None = None,
    compresses: bool = False,
) -> WebSocketLink:
    """Upgrade a request. The handler closes the link at its end and returns `link.response`.

    With `compresses` a client's offer of permessage-deflate is taken where it is sound.

    Raises:
        aiohttp.web.HTTPBadRequest: it is not a WebSocket upgrade.
        LinkClosed: the client has already gone.
    """
    offers = request.headers.get(hdrs.SEC_WEBSOCKET_EXTENSIONS, "")
    response = _ServerSocket(
        decode_text=False,
        max_msg_size=_size_refused(limits),
        compress=compresses and is_sound(offers),
        autoping=True,
        heartbeat=limits.heartbeat_s,
        timeout=limits.close_timeout_s,
    )
    response.headers.update(headers or {})
    transport = request.transport
    if transport is None:
        raise LinkClosed("the client left before the upgrade")
    try:
        await response.prepare(request)
    except ConnectionError as error:
        raise LinkClosed("the client left during the upgrade") from error
    agreed = response.headers.get(hdrs.SEC_WEBSOCKET_EXTENSIONS)
    deflater = Deflater(agreed) if agreed else None
    return WebSocketLink(
        response, transport, clock=clock, gate=gate, limits=limits, deflater=deflater
    )


async def connect(
    url: str,
    *,
    clock: Clock,
    headers: Mapping[str, str] | None = None,
    gate: Gate | None = None,
    limits: LinkLimits = DEFAULT_LIMITS,
) -> WebSocketLink:
    """Open a link to a server. The link owns its connection. Without a gate only position 0 may
    be sent.

    Raises:
        LinkClosed: there is no server, or it refused; then `status` is the HTTP status it gave.
    """
    session = aiohttp.ClientSession(
        ws_response_class=_ClientSocket,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),  # bounded here, as a whole
    )
    try:
        async with asyncio.timeout(limits.connect_timeout_s):
            socket = await session.ws_connect(
                url,
                headers=headers,
                decode_text=False,
                max_msg_size=_size_refused(limits),
                compress=0,
                heartbeat=limits.heartbeat_s,
                timeout=aiohttp.ClientWSTimeout(ws_close=limits.close_timeout_s),
            )
    except BaseException as error:
        await session.close()
        if isinstance(error, aiohttp.ClientError | OSError | UnicodeError):  # of the host's name
            raise _cannot_connect(url, error) from error
        raise
    assert isinstance(socket, _ClientSocket)
    return WebSocketLink(
        socket, socket.transport, clock=clock, gate=gate or Gate(), limits=limits, session=session
    )


def _size_refused(limits: LinkLimits) -> int:
    # aiohttp refuses this size itself, and one more where it inflates.
    return limits.message_bytes + 1


def _cannot_connect(url: str, error: BaseException) -> LinkClosed:
    if isinstance(error, aiohttp.WSServerHandshakeError):
        closed = LinkClosed(f"{url} refused the WebSocket upgrade with HTTP status {error.status}")
        closed.status = error.status
        return closed
    return LinkClosed(f"cannot connect to {url}: {str(error) or type(error).__name__}")


class _ServerSocket(web.WebSocketResponse[Literal[False]]):
    """aiohttp's server half, but the link answers an oversized message, because aiohttp would not
    say what the limit is, and corrupt data, which aiohttp closes as if nothing were wrong; and it
    cuts off a peer that is silent, which aiohttp would wait for where it owes it a pong."""

    refuse_big: Callable[[], None]
    cut: Callable[[], None]

    def _pong_not_received(self) -> None:
        super()._pong_not_received()
        self.cut()

    async def close(self, *, code: int = NORMAL, message: bytes = b"", drain: bool = True) -> bool:
        if code == TOO_BIG:
            self.refuse_big()
            return True
        if isinstance(self.exception(), zlib.error):
            code, message = _CORRUPT[0], _CORRUPT[1].encode()
        return await super().close(code=code, message=message, drain=drain)


class _ClientSocket(aiohttp.ClientWebSocketResponse):
    """aiohttp's client half, with the same change, and with its transport."""

    refuse_big: Callable[[], None]

    def __init__(self, reader: Any, writer: Any, *args: Any, **options: Any) -> None:
        super().__init__(reader, writer, *args, **options)
        self.transport: asyncio.Transport = writer.transport

    async def close(self, *, code: int = NORMAL, message: bytes = b"") -> bool:
        if code != TOO_BIG:
            return await super().close(code=code, message=message)
        self.refuse_big()
        return True

    async def receive(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 (as aiohttp's)
        try:
            return await super().receive(timeout)
        except asyncio.CancelledError:
            self._close_code = None  # aiohttp takes a cancelled read for a lost connection
            raise


class WebSocketLink(BaseLink):
    """One end of a WebSocket, from `accept` or `connect`."""

    def __init__(
        self,
        socket: _ServerSocket | _ClientSocket,
        transport: asyncio.Transport,
        *,
        clock: Clock,
        gate: Gate,
        limits: LinkLimits,
        session: aiohttp.ClientSession | None = None,
        deflater: Deflater | None = None,
    ) -> None:
        super().__init__(clock, gate, limits)
        self._socket = socket
        self._transport = transport
        self._session = session
        self._is_masking = session is not None  # clients must (RFC 6455, 5.3), servers must not
        self._deflater = deflater
        self._has_deflated = False
        self._recheck_s = _RECHECK_S_MIN
        self._patience: asyncio.Timeout | None = None
        socket.refuse_big = self._refuse_big
        if isinstance(socket, _ServerSocket):
            socket.cut = transport.abort

    @property
    def response(self) -> web.StreamResponse:
        """What the request handler of the server side returns."""
        assert isinstance(self._socket, web.StreamResponse)
        return self._socket

    async def recv(self) -> bytes:
        if self._ended is not None:
            raise self._closed_error()
        try:
            async with asyncio.timeout(None) as self._patience:
                message = await self._socket.receive()
        except TimeoutError:  # only `_wake_reader` makes it expire
            raise self._closed_error() from None
        except ConnectionError as error:  # aiohttp could not answer a ping
            self._end(*_failure(error))
            raise self._closed_error() from None
        finally:
            self._patience = None
        if message.type is WSMsgType.TEXT and len(message.data) <= self._limits.message_bytes:
            return self._count_in(message.data, self._clock.now())
        if message.type is WSMsgType.BINARY:
            raise ProtocolError("text frames only")
        if message.type is WSMsgType.TEXT:
            self._refuse_big()
        elif message.type is WSMsgType.CLOSE:
            self._end(message.data or NO_STATUS, message.extra or "")
        else:
            self._end(*_failure(message.data))
        raise self._closed_error()

    def _wake_reader(self) -> None:
        if self._patience is not None:
            self._patience.reschedule(0)

    def _flush(self) -> None:
        self._has_deflated = False
        super()._flush()

    def _room_bytes(self) -> int:
        if self._transport.is_closing() or self._has_deflated:
            return 0
        room_bytes = _TRANSPORT_BYTES_MAX - self._transport.get_write_buffer_size()
        return room_bytes if self._deflater is None else min(room_bytes, _TURN_BYTES_MAX)

    def _write(self, frames: list[bytes]) -> None:
        self._transport.write(b"".join(self._encode(frames)))
        self._recheck_s = _RECHECK_S_MIN

    def _encode(self, frames: list[bytes]) -> list[bytes]:
        if self._is_masking:
            return encode_masked(frames)
        if self._deflater is None:
            return encode_frames(frames)
        self._has_deflated = True
        return encode_deflated(frames, self._deflater)

    def _wait_for_room(self) -> None:
        # aiohttp owns the protocol and keeps its resume_writing to itself, so look again later.
        if self._transport.is_closing():
            self._discard()
            return
        self._wakeup = self._clock.call_at(self._clock.now() + self._recheck_s, self._flush)
        self._recheck_s = min(self._recheck_s * 2, _RECHECK_S_MAX)

    async def _hang_up(self, code: int, reason: str) -> None:
        if code == TOO_BIG:
            while not self._transport.is_closing():
                await self._clock.sleep(_LINGER_RECHECK_S)
            code = NORMAL  # for aiohttp's own accounts; the peer has had its answer
        await self._socket.close(code=code, message=_fit(reason))

    async def _release(self) -> None:
        self._cut()
        self._socket.refuse_big = _do_nothing  # else the socket and this hold each other
        if self._session is not None:
            await self._session.close()

    def _cut(self) -> None:
        # asyncio can't abort a transport that has closed after writing what it still had.
        if self._transport.get_write_buffer_size() or not self._transport.is_closing():
            self._transport.abort()

    def _refuse_big(self) -> None:
        """Name the limit, but take in what still comes until the peer hangs up.

        To close with half of its message unread would reset the connection, and the peer could
        lose the reason with it. aiohttp throws away what comes after the error.
        """
        reason = too_big_reason(self._limits.message_bytes)
        self._end(TOO_BIG, reason)
        if self._transport.is_closing():
            return
        payload = TOO_BIG.to_bytes(2, "big") + _fit(reason)
        self._transport.write(_frame(_CLOSE, payload, is_masked=self._is_masking))
        if self._transport.can_write_eof():
            self._transport.write_eof()


def _do_nothing() -> None:
    """What a socket calls once its link has been released."""


def _failure(error: object) -> tuple[int, str]:
    if isinstance(error, aiohttp.WebSocketError):
        return error.code, str(error)
    if isinstance(error, zlib.error):
        return _CORRUPT
    return CONNECTION_LOST, f"the connection was lost{f': {error}' if error else ''}"


def _fit(reason: str) -> bytes:
    """A close reason, cut between characters where it is too long."""
    return reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore").encode()


def encode_frames(frames: list[bytes]) -> list[bytes]:
    """Text frames as a server writes them (RFC 6455, 5.2): headers and payloads, to be joined."""
    parts: list[bytes] = []
    for frame in frames:
        size = len(frame)
        if size < len(_HEADERS):
            parts.append(_HEADERS[size])
        elif size < 65536:
            parts.append(_pack_medium(_TEXT, 126, size))
        else:
            parts.append(_pack_long(_TEXT, 127, size))
        parts.append(frame)
    return parts


def encode_deflated(frames: list[bytes], deflater: Deflater) -> list[bytes]:
    """Text frames of a server that has agreed to compress (RFC 7692, 6.1): each message says for
    itself whether it is compressed, and the very short and very long ones are not."""
    parts: list[bytes] = []
    for frame in frames:
        if DEFLATED_BYTES_MIN <= len(frame) <= DEFLATED_BYTES_MAX:
            parts.append(_frame(_DEFLATED_TEXT, deflater.deflate(frame), is_masked=False))
        else:
            parts += encode_frames([frame])
    return parts


def encode_masked(frames: list[bytes]) -> list[bytes]:
    """Text frames as a client writes them."""
    return [_frame(_TEXT, frame, is_masked=True) for frame in frames]


def _frame(first_byte: int, payload: bytes, *, is_masked: bool) -> bytes:
    size, mask_bit = len(payload), _MASKED * is_masked
    if size < 126:
        header = bytes((first_byte, mask_bit | size))
    elif size < 65536:
        header = _pack_medium(first_byte, mask_bit | 126, size)
    else:
        header = _pack_long(first_byte, mask_bit | 127, size)
    if not is_masked:
        return header + payload
    mask = secrets.randbits(8 * _MASK_BYTES).to_bytes(_MASK_BYTES, "big")
    return header + mask + _masked(payload, mask)


def _masked(payload: bytes, mask: bytes) -> bytes:
    """XOR with the repeated mask, as one long number: no loop over bytes."""
    size = len(payload)
    repeated = (mask * (size // _MASK_BYTES + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
