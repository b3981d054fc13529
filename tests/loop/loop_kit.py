"""A loop without a wire: one engine, one behavior, and an ear that hears the events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from agentloop.admission.admit import admit_input, admit_result
from agentloop.behaviors.api import Turn
from agentloop.behaviors.attempts import Attempts
from agentloop.clock import Clock, run_virtual
from agentloop.core.calls import Call
from agentloop.core.context import Entry
from agentloop.core.records import Config
from agentloop.engine.api import Engine, Fault, Finish, Generation, GenRequest, Sample, Script, Sink
from agentloop.engine.sim.profiles import INSTANT, Profile
from agentloop.engine.sim.replica import SimEngine
from agentloop.journal.memory import MemoryJournal
from agentloop.loop.live import Live
from agentloop.loop.live_response import Admitted, LiveResponse, Shared
from agentloop.serve.append import WS_APPEND
from agentloop.tokens.render import Head, Said, render_head, render_items, render_turn
from agentloop.wire.items import Message
from agentloop.wire.requests import AgentLoopOptions
from tests.conformance.heard import TERMINALS, Event, check_response, said_again

T = TypeVar("T")
ONE_SLOT = replace(INSTANT, name="one-slot", slots=1, block_tokens=16)
STOPS = {"response.done", *TERMINALS}


def ids_of(*said: Said) -> list[int]:
    return [token_id for part in render_turn(said) for token_id in part]


def script_of(*said: Said) -> Script:
    return Script((Sample(tuple(ids_of(*said))),))


def failing_at(ids: Sequence[int], place: int, fault: Fault) -> Script:
    """The ids, with a fault before the one at `place`."""
    return Script((Sample(tuple(ids[:place])), fault, Sample(tuple(ids[place:]))))


class Says:
    """A behavior in one function."""

    key = "says"

    def __init__(self, plan: Callable[[Turn], Script]) -> None:
        self._plan = plan

    def plan(self, turn: Turn) -> Script:
        return self._plan(turn)


class Tools:
    """The server's tools in one function."""

    def __init__(self, answer: Callable[[Call], Coroutine[Any, Any, str]] | None = None) -> None:
        self._answer = answer

    async def answer(self, call: Call) -> Entry:
        assert self._answer is not None, "no hosted tool was expected to run"
        return admit_result(call, await self._answer(call))


class Ear:
    """Hears one Response."""

    link = None

    def __init__(self) -> None:
        self.said: list[Event] = []
        self._stops = asyncio.Semaphore(0)

    def send(self, frames: Sequence[bytes], position: int) -> None:
        for frame in frames:
            event = msgspec.json.decode(frame)
            self.said.append(event)
            if event["type"] in STOPS and event["response"].get("state") != "sampling":
                self._stops.release()

    def on_stop(self) -> None: ...

    def lose(self, live: LiveResponse) -> None: ...

    async def wait_stop(self) -> Event:
        """The next event at which the loop stops for the client, or for good."""
        async with asyncio.timeout(3600):
            await self._stops.acquire()
        return [event for event in self.said if event["type"] in STOPS][-1]

    def types(self) -> list[str]:
        return [event["type"] for event in self.said]

    def output(self) -> list[tuple[str, str]]:
        """Type and text of each item that was done."""
        done = [e["item"] for e in self.said if e["type"] == "response.output_item.done"]
        return [(item["type"], item.get("arguments") or _text(item)) for item in done]


def _text(item: Event) -> str:
    return "".join(part["text"] for part in item.get("content", ()))


class Spy:
    """An engine that notes what goes through it."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.requests: list[GenRequest] = []
        self.finishes: list[tuple[float, Finish]] = []
        self.steps: list[float] = []
        self._engine = engine
        self._clock = clock

    def submit(self, request: GenRequest, sink: Sink) -> Generation:
        self.requests.append(request)
        return self._engine.submit(request, _SpySink(self, sink, self._clock))

    async def close(self) -> None:
        await self._engine.close()


class _SpySink:
    def __init__(self, spy: Spy, sink: Sink, clock: Clock) -> None:
        self._spy, self._sink, self._clock = spy, sink, clock

    def on_steps(self, ids: list[int], sizes: bytes) -> None:
        self._spy.steps += [self._clock.now()] * len(sizes)
        self._sink.on_steps(ids, sizes)

    def on_finish(self, finish: Finish) -> None:
        self._spy.finishes.append((self._clock.now(), finish))
        self._sink.on_finish(finish)


class Kit:
    """One server's loop parts."""

    def __init__(self, clock: Clock, profile: Profile = ONE_SLOT) -> None:
        self.clock = clock
        self.sim = SimEngine(profile, clock)
        self.engine = Spy(self.sim, clock)
        self.journal = MemoryJournal()
        self.live = Live(Shared(clock, self.journal, Attempts(), admit_result))
        self.count = 0

    def start(
        self,
        plan: Callable[[Turn], Script],
        *,
        options: AgentLoopOptions | None = None,
        hosted: Callable[[Call], Coroutine[Any, Any, str]] | None = None,
        engine: Engine | None = None,
    ) -> tuple[LiveResponse, Ear]:
        """A new Response at work, and who hears it."""
        self.count += 1
        config = Config(
            id=f"resp_{self.count}",
            created_at=0,
            model="sim",
            parks=True,
            says_done=True,
            hosted=frozenset({"hosted"}),
            options=options or AgentLoopOptions(final="hold"),
        )
        message = Message(role="user", content="go")
        chosen = Admitted(
            config=config,
            head=render_head(Head()),
            entries=[Entry(message, render_items([message]))],
            design=WS_APPEND,
            engine=engine or self.engine,
            behavior=Says(plan),
            hosted=Tools(hosted),
        )
        ear = Ear()
        return self.live.create(chosen, ear, received_s=self.clock.now(), byte_count=0), ear

    def append(self, live: LiveResponse, *items: Event) -> None:
        raw = msgspec.Raw(msgspec.json.encode(items))
        live.response.append(admit_input(raw, live.response.calls.find))
        live.publish()

    def answer_all(self, live: LiveResponse, output: str = "ok") -> None:
        """Outputs for all pending calls."""
        pending = [call.call_id for call in live.response.calls.pending()]
        self.append(live, *(output_of(call_id, output) for call_id in pending))

    async def check_free(self) -> None:
        """The engine's only slot is free: another Response gets its turn."""
        _, ear = self.start(lambda turn: Script(), options=AgentLoopOptions(final="complete"))
        assert (await ear.wait_stop())["type"] == "response.completed"


def output_of(call_id: str, output: str) -> Event:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def user(text: str) -> Event:
    return {"role": "user", "content": text}


def check_ended(kit: Kit, live: LiveResponse, ear: Ear) -> None:
    """The Response has ended once, in order, and a replay says so too."""
    assert [t for t in ear.types() if t in TERMINALS] == [ear.types()[-1]]
    check_response(ear.said)
    replayed = [msgspec.json.decode(frame) for frame in said_again(kit.live, live.response.id)]
    assert replayed == ear.said
    assert live.task is None or live.task.done()


def run(main: Callable[[Kit], Coroutine[Any, Any, T]], profile: Profile = ONE_SLOT) -> T:
    """Run a test in virtual time; whatever it does, no task may be left."""

    async def watched(clock: Clock) -> T:
        kit = Kit(clock, profile)
        result = await main(kit)
        await kit.live.close()
        await kit.engine.close()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left running: {left}"
        return result

    return run_virtual(watched)
