"""What the tests of field reports share: a server behind either link, a client that keeps all it
hears, runs that show every kind of event, and what must agree in any of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agentloop.clock import Clock, run_virtual
from agentloop.engine.api import Engine, Generation, GenRequest, Part, Sample, Script, Sink
from agentloop.engine.sim.profiles import INSTANT, Profile
from agentloop.engine.sim.replica import SimEngine
from agentloop.link.api import Link
from agentloop.serve.service import Service
from agentloop.server.options import ServerOptions
from tests.conformance.heard import TERMINALS, Event, check_response
from tests.conformance.runner import SETTLE_S
from tests.conformance.stages import in_memory
from tests.server.server_kit import serving
from tests.tokens import oracle

MakeEngine = Callable[[Profile, Clock], Engine]
Get = Callable[[str], Awaitable[tuple[int, Any]]]

STAGES = ("memory", "websocket")
PATIENCE_S = 10.0  # of virtual time: longer than any turn here takes, shorter than a keepalive
TOOLS: list[Event] = [
    {"type": "function", "name": "shell"},
    {"type": "custom", "name": "patch"},
    {"type": "web_search"},
]
SHELL: Event = {"call": {"name": "shell", "arguments": {"cmd": "ls -la", "cwd": "/srv/project"}}}
PATCH: Event = {"call": {"name": "patch", "arguments": "*** Begin Patch\n+ a line\n*** End Patch"}}
SEARCH: Event = {"call": {"name": "web_search", "arguments": {"query": "how to slugify"}}}
DELTA_FIELDS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}  # what is said in deltas, and where its `.done` holds the whole


# -- what is said ----------------------------------------------------------------------------------


def create(*turns: list[Event], **fields: Any) -> Event:
    """A create whose model says these turns, with every kind of tool."""
    simulation = {"turns": turns, **fields.pop("simulation", {})}
    frame = {"type": "response.create", "model": "sim", "input": "go", "tools": TOOLS}
    return {**frame, "simulation": simulation, **fields}


def append(*items: Event, **fields: Any) -> Event:
    return {"type": "response.append", "input": list(items), **fields}


def output(call_id: str, text: Any = "ok", kind: str = "function_call") -> Event:
    return {"type": f"{kind}_output", "call_id": call_id, "output": text}


def user(text: str) -> Event:
    return {"type": "message", "role": "user", "content": text}


GOLDEN: dict[str, Event] = {
    "text": create([{"text": "Hello there, all is well."}]),
    "reasoning and text": create([{"reasoning": "Let me think."}, {"text": "Thought."}]),
    "one call": create([SHELL], [{"text": "I have seen it."}]),
    "two calls": create([{"reasoning": "Both."}, SHELL, SHELL], [{"text": "I have seen both."}]),
    "custom call": create([{"text": "Patching."}, PATCH], [{"text": "Patched."}]),
    "hosted call": create([SEARCH], [{"text": "I have found it."}]),
    "empty text": create([{"text": ""}]),
    "incomplete text": create([{"text": "one two three four five six"}], max_output_tokens=6),
    "incomplete call": create([SHELL, SHELL], max_output_tokens=50),
}


# -- who says and hears it -------------------------------------------------------------------------


class Client:
    """One link's client.

    Attributes:
        heard: every event that ever came, in order; each came as one frame of valid UTF-8.
    """

    def __init__(self, link: Link) -> None:
        self.heard: list[Event] = []
        self._link = link

    def say(self, *frames: Event | bytes) -> None:
        """All at once; bytes go as they are."""
        self._link.send([f if isinstance(f, bytes) else msgspec.json.encode(f) for f in frames])

    async def hear(self, patience_s: float = SETTLE_S) -> list[Event]:
        """All that comes until nothing comes for that long."""
        before = len(self.heard)
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    frame = await self._link.recv()
            except TimeoutError:
                return self.heard[before:]
            self.heard.append(read(frame))

    async def ask(self, *frames: Event | bytes, patience_s: float = SETTLE_S) -> list[Event]:
        """Say this, and hear all that comes of it."""
        self.say(*frames)
        return await self.hear(patience_s)

    async def play(self, *frames: Event, patience_s: float = SETTLE_S) -> list[Event]:
        """A create, and its Response to its end: calls are answered, rest is closed."""
        said = await self.ask(*frames, patience_s=patience_s)
        while said and said[-1]["type"] == "response.done":
            said += await self.ask(reply_to(said[-1]), patience_s=patience_s)
        return said

    def cut(self) -> None:
        self._link.abort()

    async def close(self) -> None:
        await self._link.close()


def read(frame: bytes) -> Event:
    """An event. One that is nested as deeply as the server takes may be too deep for us."""
    frame.decode("utf-8", "strict")
    try:
        event: Event = msgspec.json.decode(frame)
    except RecursionError:
        return {"type": "unreadable"}
    return event


def reply_to(done: Event) -> Event:
    """What a client says to this `response.done`."""
    kinds = {item.get("call_id"): item["type"] for item in done["response"]["output"]}
    pending = pending_of(done["response"])
    if not pending:
        return {"type": "response.close"}
    return append(*(output(call_id, kind=kinds[call_id]) for call_id in pending))


async def suspend(client: Client, *turns: list[Event], **fields: Any) -> tuple[str, list[str]]:
    """A new Response that waits for its calls: its id and theirs."""
    done = (await client.ask(create(*turns, **fields)))[-1]
    assert (done["type"], done["response"]["state"]) == ("response.done", "suspended")
    return done["response"]["id"], pending_of(done["response"])


def pending_of(told: Event) -> list[str]:
    """The calls that `response.done` or `response.attached` says are pending."""
    return [call["call_id"] for call in told["pending_tool_calls"]]


def error_of(events: list[Event]) -> tuple[int, str, str | None]:
    """The one thing that was said: status, code and param of an error."""
    (error,) = events
    assert error["type"] == "error"
    return error["status"], error["error"]["code"], error["error"]["param"]


class Site:
    """A running server.

    Args:
        get: what GET answers for a path, status and body; None where the server has no socket.
    """

    def __init__(
        self, service: Service, connect: Callable[[], Awaitable[Link]], get: Get | None = None
    ) -> None:
        self.has_http = get is not None
        self.service = service
        self.clients: list[Client] = []
        self._connect = connect
        self._get = get

    async def link(self) -> Link:
        """Another link, for whoever closes it."""
        return await self._connect()

    async def client(self) -> Client:
        """A client on another link."""
        self.clients.append(Client(await self._connect()))
        return self.clients[-1]

    async def shown(self, response_id: str) -> Any:
        """What `GET /v1/responses/{id}` shows."""
        assert self._get is not None, "a memory link has no GET"
        status, body = await self._get(f"/v1/responses/{response_id}")
        assert status == 200, body
        return body

    async def attached(self, response_id: str) -> list[Event]:
        """What an observer on a link of its own is told: what the Response is, and all it said."""
        attach = {"type": "response.attach", "response_id": response_id, "observe": True}
        return await (await self.client()).ask(attach)

    async def replayed(self, response_id: str) -> list[Event]:
        """All events of a Response, as an observer is told them."""
        first, *said, last = await self.attached(response_id)
        assert (first["type"], last["type"]) == ("response.attached", "response.replay.done")
        return said


@asynccontextmanager
async def site_on(stage: str, clock: Clock, make_engine: MakeEngine) -> AsyncIterator[Site]:
    """A server on a memory link or behind a real socket. Ids repeat from run to run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentloop.server.assemble.SimEngine", make_engine)
        if stage == "memory":
            options = ServerOptions(profile="instant", is_reproducible=True)
            async with in_memory(options, {"web_search": 0.0}, clock) as world:
                yield Site(world.service, lambda: world.open("append"))
            return
        async with serving(clock, is_reproducible=True) as server:
            site = Site(server.server.service, server.connect, server.get)
            try:
                yield site
            finally:
                for client in site.clients:
                    await client.close()


def run(
    main: Callable[[Site], Coroutine[Any, Any, None]],
    stage: str = "memory",
    make_engine: MakeEngine = SimEngine,
) -> None:
    """Run a test against a server of its own, in virtual time."""

    async def served(clock: Clock) -> None:
        async with site_on(stage, clock, make_engine) as site:
            await main(site)

    run_virtual(served)


# -- engines ---------------------------------------------------------------------------------------

Way = Callable[[Engine, GenRequest, Sink], Generation]  # how a request is taken


class Bent:
    """An engine that takes requests in a way of its own."""

    def __init__(self, engine: Engine, way: Way) -> None:
        self._engine = engine
        self._way = way

    def submit(self, request: GenRequest, sink: Sink) -> Generation:
        return self._way(self._engine, request, sink)

    async def close(self) -> None:
        await self._engine.close()


def saying(script: Script) -> Way:
    """Something else is said than what was asked for."""
    return lambda engine, request, sink: engine.submit(replace(request, script=script), sink)


def breaking(ways: list[Way], step_ms: float = 0.0) -> MakeEngine:
    """Engines that take the next requests in these ways; once they are used up, they work."""
    profile = replace(INSTANT, step_ms=step_ms)

    def take(engine: Engine, request: GenRequest, sink: Sink) -> Generation:
        return ways.pop(0)(engine, request, sink) if ways else engine.submit(request, sink)

    return lambda _, clock: Bent(SimEngine(profile, clock), take)


def noting(requests: list[GenRequest]) -> MakeEngine:
    """Engines that write down what they are asked for."""

    def take(engine: Engine, request: GenRequest, sink: Sink) -> Generation:
        requests.append(request)
        return engine.submit(request, sink)

    return lambda profile, clock: Bent(SimEngine(profile, clock), take)


def in_steps(size: int, step_ms: float = 0.0) -> MakeEngine:
    """Engines whose every step makes `size` tokens."""
    certain = {"acceptance_hard": 1.0, "acceptance_easy": 1.0}
    return in_steps_of(replace(INSTANT, draft_count=size - 1, step_ms=step_ms, **certain))


def in_steps_of(profile: Profile) -> MakeEngine:
    """Engines of this profile whose steps may span the parts of a script."""

    def take(engine: Engine, request: GenRequest, sink: Sink) -> Generation:
        return saying(joined(request.script))(engine, request, sink)

    return lambda _, clock: Bent(SimEngine(profile, clock), take)


def joined(script: Script) -> Script:
    """The script with neighbouring samples as one."""
    parts: list[Part] = []
    for part in script.parts:
        if parts and isinstance(part, Sample) and isinstance(last := parts[-1], Sample):
            parts[-1] = Sample(last.ids + part.ids)
        else:
            parts.append(part)
    return Script(tuple(parts))


# -- bytes and tokens ------------------------------------------------------------------------------


@cache
def _byte_ids() -> dict[bytes, int]:
    return {spelled: i for i, spelled in oracle.token_bytes().items() if len(spelled) == 1}


def byte_ids(data: bytes) -> list[int]:
    """One token for each byte."""
    return [_byte_ids()[bytes([each])] for each in data]


# -- what must agree -------------------------------------------------------------------------------


def of_type(said: Iterable[Event], *types: str) -> list[Event]:
    return [event for event in said if event["type"] in types]


def types_of(said: Iterable[Event]) -> list[str]:
    return [event["type"] for event in said]


def done_items(said: Iterable[Event]) -> list[Event]:
    return [event["item"] for event in of_type(said, "response.output_item.done")]


def reported_items(said: Iterable[Event]) -> list[Event]:
    """The output that each `response.done` and the terminal report, together."""
    stops = of_type(said, "response.done", *TERMINALS)
    return [item for stop in stops for item in stop["response"]["output"]]


def value_of(item: Event) -> str:
    """What an item says: a text, arguments or input."""
    if item["type"] == "function_call":
        return str(item["arguments"])
    if item["type"] == "custom_tool_call":
        return str(item["input"])
    return "".join(part["text"] for part in item.get("content", ()))


def deltas_of(said: Iterable[Event]) -> dict[str, list[str]]:
    """The deltas of each item, by its id."""
    deltas: dict[str, list[str]] = {}
    for event in said:
        if event["type"].endswith(".delta"):
            deltas.setdefault(event["item_id"], []).append(event["delta"])
    return deltas


def check_agreement(said: list[Event]) -> None:
    """One value per item, however it is told: in deltas, as `.done`, in items, in reports."""
    check_response(said)
    reported = {item["id"]: item for item in reported_items(said)}
    done = {item["id"]: item for item in done_items(said)}
    deltas = deltas_of(said)
    for event in said:
        value = DELTA_FIELDS.get(event["type"].removesuffix(".done"))
        if value is not None and event["type"].endswith(".done"):
            assert event[value] == "".join(deltas.get(event["item_id"], ""))
            assert event[value] == value_of(done[event["item_id"]])
    for item_id, item in reported.items():
        assert item == done.get(item_id, item)
        if item["type"] != "web_search_call":
            assert value_of(item) == "".join(deltas.get(item_id, ""))


async def check_agreement_everywhere(site: Site, said: list[Event]) -> None:
    """The same for what a replay tells of the Response, which has ended, and GET where it is."""
    check_agreement(said)
    response_id = said[0]["response"]["id"]
    assert await site.replayed(response_id) == said
    if site.has_http:
        shown = await site.shown(response_id)
        assert shown["output"] == reported_items(said)
        for field in ("id", "status", "error", "incomplete_details"):
            assert shown[field] == said[-1]["response"][field]
