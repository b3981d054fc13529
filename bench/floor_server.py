"""The floor: an aiohttp WebSocket server that says the same events and does nothing else.

    python -m bench.floor_server --writes frame | joined

`frame` is one call of aiohttp for each event, as anyone would write it; `joined` hands all of a
turn to the transport in one write, and of a long turn so many events at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Final

import msgspec
import uvloop
from aiohttp import WSMsgType, web

from agentloop.clock import WallClock
from agentloop.link.websocket import encode_frames
from agentloop.tokens.vocabulary import warm_up
from agentloop.wire.requests import Append, Create
from bench.floor import Session

JOINED_EVENTS_MAX: Final = 1_024
UNSENT_BYTES_MAX: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = 1 << 24
_RECHECK_S: Final = 0.001

_decoder = msgspec.json.Decoder(Create | Append)
_clock = WallClock()

Write = Callable[[web.WebSocketResponse, asyncio.Transport, Iterator[bytes]], Awaitable[None]]


async def write_each(
    socket: web.WebSocketResponse, transport: asyncio.Transport, frames: Iterator[bytes]
) -> None:
    """One write for each event."""
    for frame in frames:
        await socket.send_frame(frame, WSMsgType.TEXT)


async def write_joined(
    socket: web.WebSocketResponse, transport: asyncio.Transport, frames: Iterator[bytes]
) -> None:
    """One write for all events, in batches of at most `JOINED_EVENTS_MAX`."""
    while batch := list(islice(frames, JOINED_EVENTS_MAX)):
        transport.write(b"".join(encode_frames(batch)))
        while transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            await _clock.sleep(_RECHECK_S)


WRITES: Final[dict[str, Write]] = {"frame": write_each, "joined": write_joined}


class Floor:
    """The server's one route."""

    def __init__(self, write: Write) -> None:
        self._write = write

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One link with one Response at a time."""
        socket = web.WebSocketResponse(
            decode_text=False, compress=False, max_msg_size=MESSAGE_BYTES_MAX
        )
        await socket.prepare(request)
        transport = request.transport
        assert transport is not None, "the link has just been opened"
        session: Session | None = None
        async for received in socket:
            message = _decoder.decode(received.data)
            if isinstance(message, Create):
                session = Session(message)
                await self._write(socket, transport, session.begin())
            elif session is not None:
                await self._write(socket, transport, session.accept(message))
        return socket


async def serve(writes: str, port: int) -> None:
    """Serve until the process is asked to end."""
    app = web.Application()
    app.router.add_get("/v1/responses", Floor(WRITES[writes]).answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        warm_up()
        gc.collect()
        gc.freeze()
        host, port = runner.addresses[0][:2]
        print(f"http://{host}:{port}", flush=True)
        await _until_terminated()
    finally:
        await runner.cleanup()


async def _until_terminated() -> None:
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    await terminated.wait()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m bench.floor_server", description=__doc__)
    parser.add_argument("--writes", choices=WRITES, required=True)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    uvloop.run(serve(options.writes, options.port))


if __name__ == "__main__":
    main()
