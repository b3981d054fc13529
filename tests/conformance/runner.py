"""Plays transcripts: rules of the append protocol, written as what client and server say.

    # A comment says which rule it shows.
    @ options profile=gpu65            options of the server, before anything is said
    @ hosted web_search 30s            a tool of the server, and how long it takes
    @ speaks inject                    the protocol of the first link (append)
    @ turn {"text": "hi"}, {"call": {"name": "shell"}}     a turn of the next create's script
    @ link b                           opens another link; `@ link b hosted` speaks that protocol
    @ drop b                           cuts a link; without a name the first one
    @ wait 20s                         time passes
    C> {"type": "response.create"}     the client says this; on another link `Cb>`
    S< {"type": "response.created", "response": {"id": "$resp"}}     the server's next event
    S< ...                             any events but errors, dones and terminals may come here
    S< ... no response.created         the same, but none of these types
    S< nothing                         nothing more is said

Fields that an `S<` line does not name may hold anything. `"*"` stands for any value, `"(absent)"`
for a field that is not there; `"$name"` keeps a value and stands for it ever after, also in what
the client says. A client's line that is not JSON is sent as it is, `(binary)` as a binary frame.
A create that does not say otherwise asks the model `sim`, lists the tools `shell` and
`web_search`, and brings the script of the `@ turn` lines before it; without one, turns say "done".

Lines that follow each other on one link are sent at once; before another link speaks, everything
settles.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, NamedTuple

import msgspec

from agentloop.clock import Clock
from agentloop.errors import LinkClosed
from agentloop.link.api import Link
from agentloop.link.websocket import WebSocketLink
from agentloop.serve.service import Service
from agentloop.server.options import ServerOptions
from tests.conformance.heard import Heard

Open = Callable[[str], Awaitable[Link]]  # a protocol → the client's end of a new link


class World(NamedTuple):
    """A server, and the way to it."""

    service: Service
    open: Open


Stage = Callable[
    [ServerOptions, dict[str, float], Clock], AbstractAsyncContextManager[World]
]  # options, seconds that each of the server's tools takes
Event = dict[str, Any]

STOPS = frozenset(
    {
        "error",
        "response.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.inject.failed",
    }
)
TOOLS = [{"type": "function", "name": "shell"}, {"type": "web_search"}]
DONE = [[{"text": "done"}]]
PATIENCE_S = 5.0  # of virtual time
SETTLE_S = 1e-6  # any moment: virtual time passes only when everybody waits

_LINE = re.compile(r"([CS])(\w*)[<>] (.*)")
_DURATION = re.compile(r"([\d.]+)s")


class Mismatch(AssertionError):
    """The server said something else."""


def seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    assert found, f"{text!r} is not a duration such as 20s"
    return float(found[1])


class Player:
    """Plays one transcript. Its links are always read, as a real client reads them."""

    def __init__(self, world: World, clock: Clock, readers: asyncio.TaskGroup) -> None:
        self.heard = Heard()
        self._world = world
        self._clock = clock
        self._readers = readers
        self._links: dict[str, Link] = {}
        self._inboxes: dict[str, asyncio.Queue[bytes]] = {}
        self._skipping: dict[str, frozenset[str]] = {}  # link → types that may not be skipped
        self._values: dict[str, Any] = {}
        self._turns: list[Any] = []
        self._speaker = ""

    async def play(self, lines: list[str]) -> None:
        """All lines, and then that nothing is left which somebody should have expected."""
        spoken = (line.removeprefix("@ speaks ") for line in lines if line.startswith("@ speaks "))
        await self._open("", next(spoken, "append"))
        for number, line in enumerate(lines, start=1):
            if line and not line.startswith("#"):
                try:
                    await self._play_line(line)
                except AssertionError as error:
                    raise Mismatch(f"line {number}: {line}\n{error}") from None
        for name in self._links:
            self._skipping[name] = frozenset()
            await self._expect_nothing(name)

    async def _play_line(self, line: str) -> None:
        if line.startswith("@ "):
            await self._direct(*line[2:].split(maxsplit=1))
            return
        found = _LINE.fullmatch(line)
        assert found, "not a line of a transcript"
        side, name, text = found.groups()
        if side == "C":
            await self._say(name, text)
        elif text.startswith("..."):
            self._skipping[name] = frozenset(text.removeprefix("...").replace(" no ", "").split())
        elif text == "nothing":
            await self._expect_nothing(name)
        else:
            await self._expect(name, msgspec.json.decode(text))

    async def _direct(self, directive: str, rest: str = "") -> None:
        match directive:
            case "turn":
                self._turns.append(msgspec.json.decode(f"[{rest}]"))
            case "wait":
                await self._clock.sleep(seconds(rest))
            case "link":
                name, _, protocol = rest.partition(" ")
                await self._open(name, protocol or "append")
            case "drop":
                await self._clock.sleep(SETTLE_S)
                self._links.pop(rest).abort()
                await self._clock.sleep(SETTLE_S)
            case _:
                assert directive in ("options", "hosted", "speaks"), f"no directive {directive!r}"

    async def _open(self, name: str, protocol: str) -> None:
        link = self._links[name] = await self._world.open(protocol)
        inbox = self._inboxes[name] = asyncio.Queue()
        self._readers.create_task(read(link, inbox))
        self._skipping.pop(name, None)
        self.heard.forget(name)

    async def _say(self, name: str, text: str) -> None:
        if name != self._speaker:
            await self._clock.sleep(SETTLE_S)
            self._speaker = name
        link = self._links[name]
        if text == "(binary)":
            assert isinstance(link, WebSocketLink), "only a WebSocket has binary frames"
            await link._socket.send_bytes(b"\x00")
        elif text.startswith('{"type"'):
            link.send([self._frame(text)])
        else:
            link.send([text.encode()])

    def _frame(self, text: str) -> bytes:
        try:
            message = self._filled(msgspec.json.decode(text))
        except msgspec.DecodeError:
            return text.encode()  # wrong on purpose
        if message["type"] == "response.create":
            turns, self._turns = self._turns or DONE, []
            script = {"turns": turns}
            message = {"model": "sim", "tools": TOOLS, "simulation": script, **message}
        return msgspec.json.encode(message)

    def _filled(self, value: Any) -> Any:
        """The value with `$name` replaced by what it stands for."""
        if isinstance(value, dict):
            return {key: self._filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._filled(each) for each in value]
        if isinstance(value, str) and value.startswith("$"):
            return self._values[value]
        return value

    async def _expect(self, name: str, pattern: Event) -> None:
        unskippable = self._skipping.pop(name, None)
        while True:
            event = await self._next(name, PATIENCE_S)
            assert event is not None, "but nothing is said"
            values = dict(self._values)
            problem = mismatch(event, pattern, values)
            if not problem:
                self._values = values
                return
            if unskippable is None or event["type"] in STOPS | unskippable:
                raise Mismatch(f"but {problem} in {msgspec.json.encode(event).decode()}")

    async def _expect_nothing(self, name: str) -> None:
        unskippable = self._skipping.pop(name, None)
        while (event := await self._next(name, SETTLE_S)) is not None:
            if unskippable is None or event["type"] in STOPS | unskippable:
                raise Mismatch(f"but it says {msgspec.json.encode(event).decode()}")

    async def _next(self, name: str, patience_s: float) -> Event | None:
        try:
            async with asyncio.timeout(patience_s):
                frame = await self._inboxes[name].get()
        except TimeoutError:
            return None
        event: Event = msgspec.json.decode(frame)
        self.heard.note(name, event)
        return event


async def read(link: Link, inbox: asyncio.Queue[bytes]) -> None:
    with suppress(LinkClosed):
        while True:
            inbox.put_nowait(await link.recv())


async def hear(link: Link, patience_s: float = SETTLE_S) -> list[Event]:
    """All events that come until everybody waits."""
    heard: list[Event] = []
    while True:
        try:
            async with asyncio.timeout(patience_s):
                heard.append(msgspec.json.decode(await link.recv()))
        except TimeoutError:
            return heard


def mismatch(value: Any, pattern: Any, values: Event, path: str = "") -> str:
    """Where the value differs from the pattern, empty where it does not; fills in `values`."""
    if isinstance(pattern, str) and pattern.startswith("$"):
        pattern = values.setdefault(pattern, value)
    elif pattern == "*":
        return ""
    if isinstance(pattern, dict) and isinstance(value, dict):
        for key, expected in pattern.items():
            if (key in value) == (expected == "(absent)"):
                return f"{path}.{key} is {'' if key in value else 'not '}there"
            if problem := key in value and mismatch(value[key], expected, values, f"{path}.{key}"):
                return problem
        return ""
    if isinstance(pattern, list) and isinstance(value, list) and len(pattern) == len(value):
        found = (
            mismatch(each, expected, values, f"{path}[{index}]")
            for index, (each, expected) in enumerate(zip(value, pattern, strict=True))
        )
        return next(filter(None, found), "")
    if type(value) is type(pattern) and value == pattern:
        return ""
    return f"{path} is {value!r} and not {pattern!r}"


async def play(text: str, stage: Stage, clock: Clock) -> None:
    """Play a transcript on a stage of its own.

    Raises:
        Mismatch: the server broke the rule; the message tells the line.
    """
    lines = text.splitlines()
    words = [line.split()[1:] for line in lines if line.startswith("@ ")]
    options = dict(word.split("=") for first, *rest in words if first == "options" for word in rest)
    hosted = {name: seconds(s) for first, name, s, *_ in map(padded, words) if first == "hosted"}
    defaults = {"port": 0, "profile": "instant", "is_reproducible": True}
    problem: AssertionError | None = None
    chosen = msgspec.convert({**defaults, **options}, ServerOptions, strict=False)
    async with (
        asyncio.TaskGroup() as readers,
        stage(chosen, {"web_search": 0.0, "shell": 0.0} | hosted, clock) as world,
    ):
        player = Player(world, clock, readers)
        try:
            await player.play(lines)
            player.heard.check(world.service.live)
        except AssertionError as error:
            problem = error
    if problem is not None:  # raised out here, it is not wrapped in groups
        raise problem


def padded(words: list[str]) -> list[str]:
    return [*words, "", "", ""]
