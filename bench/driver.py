"""The client of the benches: one Response on one link, and nothing that takes time.

It is the same for all servers: aiohttp's own WebSocket client, which looks at the first bytes of
each event only. A message is encoded before its clock starts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal, NamedTuple

import aiohttp
import msgspec
from msgspec import Raw, Struct

from agentloop.clock import WallClock
from agentloop.drive.event import ServerEvent, decode_event
from agentloop.errors import LinkClosed, ServerFault
from agentloop.ids import IdSource
from agentloop.wire import codec
from agentloop.wire.items import FunctionCallOutput
from agentloop.wire.requests import Append, Create, ScriptedCall, ScriptedPart, Simulation

_DONE: Final = b'{"type":"response.done"'
_ERROR: Final = b'{"type":"error"'
_TEXT_DELTA: Final = b'{"type":"response.output_text.delta"'

TOOL: Final = Raw(
    b'{"type":"function","name":"shell","description":"Run a shell command.","parameters":'
    b'{"type":"object","properties":{"cmd":{"type":"string"}},"required":["cmd"]}}'
)
TOOL_TURN: Final = [
    ScriptedPart(reasoning="The test fails in slugify; look at the file first."),
    ScriptedPart(call=ScriptedCall("shell", {"cmd": "sed -n 1,40p src/slugify.py"})),
]
TOOL_OUTPUT: Final = """\
import re
import unicodedata


def slugify(text: str, separator: str = "-") -> str:
    \"""Turn any text into a part of a URL.\"""
    text = unicodedata.normalize("NFKD", text)
    text = text.encode("ascii", "ignore").decode()
    text = re.sub(r"[^a-z0-9]+", separator, text.lower())
    return text.strip(separator)
"""


def scripted(turns: Sequence[Sequence[ScriptedPart]], user_text: str = "Fix the test.") -> Create:
    """A create that brings its script."""
    simulation = Simulation(turns=[list(turn) for turn in turns], profile="instant")
    return Create(
        model="sim-model",
        input=Raw(codec.encode(user_text)),
        tools=[TOOL],
        simulation=simulation,
    )


class Turn(NamedTuple):
    """One turn: from sending its message to receiving `response.done`."""

    latency_s: float
    frames: list[bytes]


class Stream(Struct, frozen=True):
    """The text deltas of one turn.

    Attributes:
        first_s: from sending the message to the first delta.
        spent_s: from the first delta to the event after the last one.
    """

    deltas: int
    first_s: float
    spent_s: float

    @property
    def deltas_per_s(self) -> float:
        """The rate after the first delta."""
        return (self.deltas - 1) / self.spent_s


class Driver:
    """A client of one Response after the other."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[Literal[False]]) -> None:
        self._socket = socket
        self._clock = WallClock()
        self._ids = IdSource()
        self._stopped = ServerEvent(type="")

    @property
    def input_tokens(self) -> int:
        """The prompt of the last turn, as the server counted it."""
        paused = self._stopped.response
        assert paused is not None, "a create comes first"
        assert paused.usage is not None, "each stop tells the usage"
        return paused.usage.input_tokens

    async def create(self, create: Create) -> Turn:
        """Open a Response, and wait for its first turn."""
        return await self._turn(codec.encode(create))

    async def answer(self, text: str) -> Turn:
        """Answer the one call that waits, and wait for the next turn."""
        paused = self._stopped.response
        assert paused is not None, "a create comes first"
        (call,) = paused.pending_tool_calls
        append = Append(
            input=Raw(codec.encode([FunctionCallOutput(call_id=call.call_id, output=text)])),
            response_id=paused.id,
            event_id=self._ids.draw("evt"),
        )
        return await self._turn(codec.encode(append))

    async def stream(self, create: Create) -> Stream:
        """Open a Response whose first turn is one long text."""
        now = self._clock.now
        sent_s = first_s = last_s = now()
        deltas = 0
        await self._socket.send_frame(codec.encode(create), aiohttp.WSMsgType.TEXT)
        while not (frame := await self._receive()).startswith(_DONE):
            if frame.startswith(_TEXT_DELTA):
                if deltas == 0:
                    first_s = now()
                deltas += 1
            elif deltas and last_s <= first_s:
                last_s = now()
        return Stream(deltas, first_s - sent_s, last_s - first_s)

    async def _turn(self, message: bytes) -> Turn:
        now, frames = self._clock.now, []
        sent_s = now()
        await self._socket.send_frame(message, aiohttp.WSMsgType.TEXT)
        while True:
            frame = await self._receive()
            frames.append(frame)
            if frame.startswith(_DONE):
                break
        latency_s = now() - sent_s
        self._stopped = decode_event(frame)
        return Turn(latency_s, frames)

    async def _receive(self) -> bytes:
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise LinkClosed("the server closed the link within a turn")
        frame: bytes = message.data
        if frame.startswith(_ERROR):
            raise ServerFault(f"the server refused: {frame.decode()}")
        return frame


@asynccontextmanager
async def linked(url: str) -> AsyncIterator[Driver]:
    """A driver on a new link to the server at this base URL."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(
            f"{url}/v1/responses?protocol=append", decode_text=False, compress=0, max_msg_size=0
        ) as socket,
    ):
        yield Driver(socket)


class _Typed(Struct):
    type: str


_type_decoder = msgspec.json.Decoder(_Typed)


def event_types(turn: Turn) -> list[str]:
    """The types of a turn's events, in order."""
    return [_type_decoder.decode(frame).type for frame in turn.frames]
