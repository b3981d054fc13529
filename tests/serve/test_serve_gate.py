"""The gate above the link: nothing is said before the last record that it reveals is durable.

The journal here is durable up to where the test says. Whoever asks does so on a link of its own, on
which nothing else waits that would hold the answer back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from agentloop.clock import Clock, run_virtual
from agentloop.core.records import AnyRecord
from agentloop.gate import Gate
from agentloop.journal.memory import MemoryJournal
from agentloop.link.api import Link
from agentloop.link.memory import memory_pair
from agentloop.serve.connection import Connection
from agentloop.serve.designs import DESIGNS
from agentloop.serve.service import Service
from agentloop.server.assemble import assemble
from agentloop.server.options import ServerOptions
from tests.conformance.heard import UNNUMBERED, Event
from tests.conformance.runner import hear
from tests.conformance.stages import toolbox_of

CALL: Event = {"call": {"name": "shell"}}
SEARCH: Event = {"call": {"name": "web_search", "arguments": {"query": "x"}}}
LONG: Event = {"repeat": {"text": "word ", "tokens": 8_000}}  # more than a link holds ready
TOOLS = [{"type": "function", "name": "shell"}, {"type": "web_search"}]


def create(*turns: list[Event], **fields: Any) -> Event:
    simulation = {"turns": turns}
    frame = {"type": "response.create", "model": "sim", "input": "go", "tools": TOOLS}
    return {**frame, "simulation": simulation, **fields}


def append(response_id: str, *items: Event, **fields: Any) -> Event:
    return {"type": "response.append", "response_id": response_id, "input": items, **fields}


def output_of(call_id: str, output: str = "ok") -> Event:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


class HeldGate(Gate):
    """Advances when the test says so."""

    def advance(self, position: int) -> None:
        """What the journal says of itself counts for nothing."""

    def let(self, position: int) -> None:
        super().advance(position)


class HeldJournal(MemoryJournal):
    """Durable up to where the test says.

    Attributes:
        positions: of the record that made the event with this number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = self._held = HeldGate()
        self.positions: dict[tuple[str, int], int] = {}

    def append(self, response_id: str, records: Sequence[AnyRecord]) -> int:
        last = super().append(response_id, records)
        for position, record in enumerate(records, start=last - len(records) + 1):
            for number in range(record.first_seq, record.first_seq + record.event_count):
                self.positions[response_id, number] = position
        return last

    def settle(self, position: int | None = None) -> None:
        """All is durable, or all up to this position."""
        self._held.let(self.position if position is None else position)


class Peer:
    """A client's end of a link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def say(self, message: Event) -> None:
        self._link.send([msgspec.json.encode(message)])

    async def hear(self) -> list[Event]:
        """All that comes until everybody waits."""
        return await hear(self._link)


class Scene:
    """A server over a journal that the test holds."""

    def __init__(self, service: Service, journal: HeldJournal, clock: Clock) -> None:
        self.journal = journal
        self.clock = clock
        self._service = service
        self._group = asyncio.TaskGroup()
        self._links: list[Link] = []

    def open(self) -> Peer:
        """Another link."""
        theirs, ours = memory_pair(self.clock, self.journal.gate)
        self._links += [ours, theirs]
        self._group.create_task(Connection(theirs, self._service, DESIGNS["append"]).run())
        return Peer(ours)

    async def play(self, main: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        async with self._group:
            try:
                await main(self)
            finally:
                for link in self._links:
                    await link.close()
        await self._service.close()


def run(main: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def watched(clock: Clock) -> None:
        journal = HeldJournal()
        options = ServerOptions(profile="instant", is_reproducible=True)
        service = assemble(options, clock, journal, toolbox_of({"web_search": 0.0}, clock))
        await Scene(service, journal, clock).play(main)

    run_virtual(watched)


# -- numbered events -------------------------------------------------------------------------------


async def release(scene: Scene, peer: Peer) -> list[tuple[int, Event]]:
    """What is heard while one record after another becomes durable, and up to where all was."""
    heard: list[tuple[int, Event]] = []
    assert await peer.hear() == []
    for position in range(scene.journal.gate.durable + 1, scene.journal.position + 1):
        scene.journal.settle(position)
        heard += [(position, event) for event in await peer.hear()]
    return heard


def test_no_event_comes_before_its_record_is_durable() -> None:
    """From created to completed: text, calls of both kinds, acceptances."""

    async def main(scene: Scene) -> None:
        peer = scene.open()
        peer.say(create([{"text": "a"}, SEARCH, CALL], [CALL, CALL], [{"text": "b"}]))
        heard = await release(scene, peer)
        response_id = heard[0][1]["response"]["id"]
        while calls := heard[-1][1]["response"]["pending_tool_calls"]:
            for call in calls:
                peer.say(append(response_id, output_of(call["call_id"])))
            heard += await release(scene, peer)
        peer.say({"type": "response.close", "response_id": response_id})
        heard += await release(scene, peer)
        assert heard[-1][1]["type"] == "response.completed"
        numbers = [event["sequence_number"] for _, event in heard]
        assert numbers == list(range(len(scene.journal.positions)))
        for durable, event in heard:
            number = event["sequence_number"]
            assert scene.journal.positions[response_id, number] <= durable, event

    run(main)


def test_replay_waits_for_what_happens_within_it() -> None:
    async def main(scene: Scene) -> None:
        first, other = scene.open(), scene.open()
        turn = [LONG, {"stall_ms": 1_000}, {"text": "late"}]
        first.say(create(turn))
        await first.hear()
        scene.journal.settle()
        response_id = (await first.hear())[0]["response"]["id"]
        other.say({"type": "response.attach", "response_id": response_id, "observe": True})
        await scene.clock.sleep(1.0)  # nobody reads; "late" is said and not yet durable
        durable = scene.journal.gate.durable
        said = [event for event in await other.hear() if event["type"] not in UNNUMBERED]
        positions = scene.journal.positions
        assert said
        assert all(positions[response_id, e["sequence_number"]] <= durable for e in said)
        scene.journal.settle()
        assert [event["type"] for event in await other.hear()][-2:] == [
            "response.done",
            "response.replay.done",
        ]

    run(main)


# -- what reveals a record without being its event -------------------------------------------------


CANCEL: Event = {"type": "response.cancel"}
KEYED = create([CALL, CALL], [{"text": "b"}], event_id="create")


def answer(response_id: str, call_id: str) -> Event:
    return append(response_id, output_of(call_id), event_id="append")


Ask = Callable[[str, str], Event]  # the Response, its pending call → what somebody else asks


@pytest.mark.parametrize(
    ("secret", "ask", "answered"),
    [
        (CANCEL, answer, "error"),
        (CANCEL, lambda resp, call: {**answer(resp, call), "type": "response.inject"},
         "response.inject.failed"),
        (CANCEL, lambda resp, call: {"type": "response.attach", "response_id": resp},
         "response.attached"),
        (answer, lambda resp, call: {"type": "response.attach", "response_id": resp},
         "response.attached"),
        (CANCEL, lambda resp, call: KEYED, "response.attached"),
        (answer, answer, "response.append.accepted"),
        (None, answer, "response.append.accepted"),
    ],
    ids=["error", "inject failed", "attached", "taken over", "create repeated", "append repeated",
         "append from elsewhere"],
)  # fmt: skip
def test_nobody_is_told_of_what_is_not_durable(
    secret: Event | Ask | None, ask: Ask, answered: str
) -> None:
    """Something happened that may yet be lost; then somebody else asks."""

    async def main(scene: Scene) -> None:
        first, other = scene.open(), scene.open()
        first.say(KEYED)
        await first.hear()
        scene.journal.settle()
        done = (await first.hear())[-1]["response"]
        about = done["id"], done["pending_tool_calls"][0]["call_id"]
        if secret is not None:
            first.say(secret(*about) if callable(secret) else secret)
            assert await first.hear() == []
        other.say(ask(*about))
        assert await other.hear() == []
        assert scene.journal.gate.durable < scene.journal.position
        scene.journal.settle(scene.journal.position - 1)
        assert await other.hear() == [], "one record is still to come"
        scene.journal.settle()
        assert (await other.hear())[0]["type"] == answered

    run(main)


def test_late_refusal_of_a_close_waits_for_the_turns_end() -> None:
    async def main(scene: Scene) -> None:
        first, other = scene.open(), scene.open()
        first.say(create([{"stall_ms": 1_000}, CALL]))
        await first.hear()
        scene.journal.settle()
        response_id = (await first.hear())[0]["response"]["id"]
        other.say({"type": "response.close", "response_id": response_id, "event_id": "k"})
        await scene.clock.sleep(1.0)
        assert await other.hear() == []
        scene.journal.settle()
        (error,) = await other.hear()
        assert error["error"]["code"] == "calls_pending"
        assert error["event_id"] == "k"

    run(main)


def test_what_reveals_nothing_does_not_wait() -> None:
    """Where all is durable, an error is said at once."""

    async def main(scene: Scene) -> None:
        peer = scene.open()
        peer.say({"type": "response.cancel"})
        (error,) = await peer.hear()
        assert error["error"]["code"] == "response_not_found"

    run(main)
