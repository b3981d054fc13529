"""A real server in virtual time: what raw peers do to it, what it holds of them, what its engines
are asked for, and what a turn says where nobody disturbs it."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import msgspec
import pytest
from aiohttp import web

from agentloop.clock import Clock, run_virtual
from agentloop.engine.api import Finish, Generation, GenRequest, Sink
from agentloop.engine.sim.profiles import Profile
from agentloop.engine.sim.replica import SimEngine
from agentloop.link.api import DEFAULT_LIMITS, LinkLimits
from agentloop.link.websocket import WebSocketLink, accept
from agentloop.loop.live_response import LiveResponse
from tests.abuse.socket_kit import SMALL_BUFFER_BYTES, Peer, until
from tests.conformance.heard import UNNUMBERED, Event
from tests.server.server_kit import Client, serving

WHEN = pytest.mark.parametrize("is_running", [False, True], ids=["first", "while a turn runs"])
TURN: list[Event] = [
    {"reasoning": "Let me look."},
    {"stall_ms": 2_000},
    {"text": "I have seen it, and it is good."},
    {"call": {"name": "shell", "arguments": {"cmd": "ls"}}},
]
STALLED_S = 1.0  # after this long TURN stands in its stall


def create(turn: list[Event] = TURN, profile: str | None = None, **fields: Any) -> Event:
    """A create whose model says this turn."""
    tools = [{"type": "function", "name": "shell"}]
    frame = {"type": "response.create", "model": "sim", "input": "go", "tools": tools}
    return {**frame, "simulation": {"turns": [turn], "profile": profile}, **fields}


# -- the server ------------------------------------------------------------------------------------


class Runs:
    """What the engines of a server were asked for, and how each generation ended.

    Attributes:
        started: how many were submitted.
        ended: the reason that each gave, and when, in order.
    """

    def __init__(self) -> None:
        self.started = 0
        self.ended: list[tuple[str, float]] = []

    @property
    def running(self) -> int:
        return self.started - len(self.ended)

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.ended]


class NotedEngine:
    """The simulated engine, and its generations noted."""

    def __init__(self, runs: Runs, profile: Profile, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock
        self._engine = SimEngine(profile, clock)

    def submit(self, request: GenRequest, sink: Sink) -> Generation:
        generation = self._engine.submit(request, _NotedSink(self._runs, self._clock, sink))
        self._runs.started += 1
        return generation

    async def close(self) -> None:
        await self._engine.close()


class _NotedSink:
    def __init__(self, runs: Runs, clock: Clock, sink: Sink) -> None:
        self._runs = runs
        self._clock = clock
        self._sink = sink
        self.on_steps = sink.on_steps

    def on_finish(self, finish: Finish) -> None:
        self._runs.ended.append((finish.reason, self._clock.now()))
        self._sink.on_finish(finish)


class Held:
    """The server's half of a link, and the most that it ever held.

    Attributes:
        queued_bytes_max: in its outbox.
        unsent_bytes_max: there, and written but not yet taken by the kernel.
    """

    def __init__(self, link: WebSocketLink) -> None:
        self.link = link
        self.queued_bytes_max = self.unsent_bytes_max = 0
        self._put = link.send
        setattr(link, "send", self._send)  # noqa: B010 (a method of one instance)

    def _send(self, frames: Any, position: int = 0) -> None:
        self._put(frames, position)
        queued_bytes = self.link.queued_bytes
        unsent_bytes = queued_bytes + self.link._transport.get_write_buffer_size()
        self.queued_bytes_max = max(self.queued_bytes_max, queued_bytes)
        self.unsent_bytes_max = max(self.unsent_bytes_max, unsent_bytes)


class Scene:
    """A server, what it holds, and a way to it for raw peers."""

    def __init__(self, client: Client, runs: Runs, accepted: asyncio.Queue[Held]) -> None:
        self.client = client
        self.clock = client.clock
        self.runs = runs
        self.peers: list[Peer] = []
        self._accepted = accepted

    async def peer(self, **options: Any) -> Peer:
        """Another link."""
        return (await self.link(**options))[0]

    async def link(self, **options: Any) -> tuple[Peer, Held]:
        """Another link: both its ends."""
        peer = await Peer.open(self.client.server.url, **options)
        self.peers.append(peer)
        return peer, await self._accepted.get()

    async def narrow_link(self) -> tuple[Peer, Held]:
        """Another link, for which the kernel keeps next to nothing in either direction."""
        peer, held = await self.link(receive_buffer_bytes=SMALL_BUFFER_BYTES)
        server_socket = held.link._transport.get_extra_info("socket")
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
        return peer, held

    def live(self, response_id: str) -> LiveResponse:
        """The Response as the server has it."""
        return self.client.server.service.live.get(response_id)

    async def replayed(self, response_id: str) -> list[Event]:
        """All that a Response has said, as an observer on another link is told."""
        peer = await self.peer()
        attach = {"type": "response.attach", "response_id": response_id, "observe": True}
        first, *events, last = await peer.ask(attach, patience_s=0.1)
        assert (first["type"], last["type"]) == ("response.attached", "response.replay.done")
        return events

    async def terminal(self, response_id: str) -> tuple[str, str | None]:
        """The one terminal that a Response ended with: its type, and why."""
        *_, last = await self.replayed(response_id)
        details = last["response"].get("incomplete_details") or {}
        return last["type"], details.get("reason")


@asynccontextmanager
async def _scene(clock: Clock, limits: LinkLimits, **options: Any) -> AsyncIterator[Scene]:
    runs, accepted = Runs(), asyncio.Queue[Held](maxsize=100)
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(repr(context)))

    async def accept_limited(request: web.Request, **others: Any) -> WebSocketLink:
        link = await accept(request, **{**others, "limits": limits})
        accepted.put_nowait(Held(link))
        return link

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentloop.server.app.accept", accept_limited)
        patch.setattr(
            "agentloop.server.assemble.SimEngine",
            lambda profile, clock: NotedEngine(runs, profile, clock),
        )
        chosen = {"profile": "gpu65", "is_reproducible": True, **options}
        async with serving(clock, **chosen) as client:
            scene = Scene(client, runs, accepted)
            try:
                yield scene
            finally:
                for peer in scene.peers:
                    peer.close()
    assert not complaints, f"nobody handled: {complaints}"


def run(
    main: Callable[[Scene], Coroutine[Any, Any, None]],
    limits: LinkLimits = DEFAULT_LIMITS,
    **options: Any,
) -> None:
    """Run a test against a server of its own, in virtual time. Ids repeat from run to run."""

    async def staged(clock: Clock) -> None:
        async with _scene(clock, limits, **options) as scene:
            await main(scene)

    run_virtual(staged)


# -- floods ----------------------------------------------------------------------------------------


class Tally:
    """What a flooding peer hears, counted."""

    def __init__(self, peer: Peer) -> None:
        self.codes: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        peer.keep = self._count

    def _count(self, payload: bytes) -> None:
        event = msgspec.json.decode(payload)
        self.types[event["type"]] += 1
        if event["type"] == "error":
            self.codes[event["error"]["code"]] += 1


async def drown(peer: Peer, held: Held, data: bytes) -> tuple[tuple[int, str] | None, int]:
    """This peer says so much, and reads nothing before its link has ended.

    Returns: the server's goodbye, and by how many bytes the process grew meanwhile.
    """
    peer.stop_reading()
    before_bytes = most_bytes = rss_bytes()

    def is_over() -> bool:
        nonlocal most_bytes
        most_bytes = max(most_bytes, rss_bytes())
        return held.link.is_closed

    async with asyncio.TaskGroup() as group:
        writing = group.create_task(peer.write(data))
        await until(is_over)
        peer.read_on()
        closed = await peer.hear_end()
        writing.cancel()
    return closed, most_bytes - before_bytes


# -- what must not change --------------------------------------------------------------------------


def of_turn(events: list[Event]) -> list[Event]:
    """What was said of the default lane's Responses: errors and other lanes left out."""
    return [e for e in events if e["type"] not in UNNUMBERED and "stream_id" not in e]


def check_error(heard: list[Event], **echoes: str) -> Event:
    """There is one error frame and nothing else; it is whole, and echoes these ids alone."""
    (error,) = heard
    assert error["type"] == "error"
    assert type(error["status"]) is int
    body = error["error"]
    assert {type(body[name]) for name in ("code", "type", "message")} == {str}
    assert 0 < len(body["message"]) <= 1_000
    assert body["param"] is None or isinstance(body["param"], str)
    assert set(body) == {"code", "type", "message", "param"}
    assert {name: error[name] for name in error if name.endswith("_id")} == echoes
    return error


def plain(events: list[Event]) -> list[Event]:
    """The events, whichever Response they are of and whenever it was made."""
    response = next(event["response"] for event in events if "response" in event)
    id_suffix = response["id"].partition("_")[2]
    told = msgspec.json.encode(events).replace(id_suffix.encode(), b"0" * len(id_suffix))
    told = re.sub(rb'"(created_at|completed_at)":\d+', rb'"\1":0', told)
    decoded: list[Event] = msgspec.json.decode(told)
    return decoded


@cache
def _undisturbed(frame: bytes, patience_s: float) -> bytes:
    heard: list[Event] = []

    async def main(scene: Scene) -> None:
        peer = await scene.peer()
        heard.extend(await peer.ask(frame, patience_s=patience_s))

    run(main)
    return msgspec.json.encode(heard)


def undisturbed(frame: Event, patience_s: float = 10.0) -> list[Event]:
    """All that this create brings on a server that nobody else uses, until it stops."""
    heard: list[Event] = msgspec.json.decode(_undisturbed(msgspec.json.encode(frame), patience_s))
    return heard


def rss_bytes() -> int:
    """The memory that this process has now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
