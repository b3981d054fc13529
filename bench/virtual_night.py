"""A night in virtual time: one agent session of thousands of turns over hours, in seconds.

    python -m bench.virtual_night --turns 5000 --hours 8 --seed 1

Everything is drawn from the seed: what the model says, how long tools take, when the engine fails
and when the link is lost. So is the hash of all records: a change that moves it has changed what
was said, in which order or under which number.
"""

from __future__ import annotations

import argparse
import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from agentloop.clock import Clock, WallClock, run_virtual
from agentloop.core.records import AnyRecord
from agentloop.drive.event import CREATED, DONE, TERMINALS, ResponseShown
from agentloop.journal.memory import MemoryJournal
from agentloop.link.memory import MemoryLink, memory_pair
from agentloop.serve.append import WS_APPEND
from agentloop.serve.connection import Connection
from agentloop.serve.service import Service
from agentloop.server.assemble import assemble
from agentloop.server.options import ServerOptions
from agentloop.tools.api import Durability, Toolbox
from agentloop.wire.items import FunctionTool

PROFILE = "instant"  # tools fill the night; other profiles end where their context is full
LINK_LOSS, FAULT, SEARCH, USER = 0.001, 0.01, 0.05, 0.08  # chances per turn
SEARCH_S = 2.0
TTL_S = 86_400
TOOLS = [{"type": "function", "name": "shell"}, {"type": "web_search"}]
WORDS = ("read", "run", "patch", "test", "look", "again", "fix", "check")

Part = dict[str, Any]


class Night(Struct, frozen=True):
    """What a night came to.

    Attributes:
        turns: model turns of the session.
        records: how many there are; `records_hash` is over all of them, ids and numbers included.
    """

    turns: int
    virtual_s: float
    records: int
    records_hash: str
    links: int
    status: str


class HashingJournal:
    """A journal in memory that keeps a hash of everything."""

    def __init__(self) -> None:
        self._kept = MemoryJournal()
        self.gate = self._kept.gate
        self._hash = blake2b(digest_size=16)
        self._encoder = msgspec.json.Encoder(enc_hook=_plain, order="deterministic")
        self.count = 0

    @property
    def position(self) -> int:
        return self._kept.position

    def append(self, response_id: str, records: Sequence[AnyRecord]) -> int:
        for record in records:
            self._hash.update(response_id.encode() + self._encoder.encode(record) + b"\n")
        self.count += len(records)
        return self._kept.append(response_id, records)

    def read(self, response_id: str, start: int = 0, count: int | None = None) -> list[AnyRecord]:
        return self._kept.read(response_id, start, count)

    def forget(self, response_id: str) -> None:
        self._kept.forget(response_id)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _plain(value: object) -> list[int]:
    assert isinstance(value, array), f"a record holds a {type(value).__name__}"
    return value.tolist()


class Search:
    """A hosted search that always takes the same time and finds the same."""

    name = "web_search"
    kind: Durability = "pure"
    definition = FunctionTool(name="web_search", parameters={"type": "object"})

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def run(self, arguments: dict[str, object]) -> str:
        await self._clock.sleep(SEARCH_S)
        return "one result"


def script(random: Random, turns: int) -> list[list[Part]]:
    """What the model says in each turn; the last one only speaks."""
    return [*(_turn(random) for _ in range(turns - 1)), [{"text": "all done"}]]


def _turn(random: Random) -> list[Part]:
    words = " ".join(random.choices(WORDS, k=random.randint(1, 6)))
    kind = random.random()
    if kind < USER:
        return [{"text": words}]
    parts: list[Part] = [{"text": words}] if random.random() < 0.3 else []
    if random.random() < FAULT:
        parts.append({"fail": "overloaded"})
    if kind < USER + SEARCH:
        return [*parts, {"call": {"name": "web_search", "arguments": {"query": words}}}]
    calls = random.choices((1, 2, 3), weights=(8, 2, 1))[0]
    return [*parts, *({"call": {"name": "shell", "arguments": {"cmd": words}}},) * calls]


class _Event(Struct):
    type: str
    sequence_number: int = -1
    response: ResponseShown | None = None


class Agent:
    """The client: runs tools that only take time, and comes back when its link is lost."""

    def __init__(
        self, clock: Clock, service: Service, random: Random, wait_s: float, until_s: float
    ) -> None:
        self.links = 0
        self._until_s = until_s
        self._clock = clock
        self._service = service
        self._random = random
        self._wait_s = wait_s
        self._decode = msgspec.json.Decoder(_Event).decode
        self._response_id = ""
        self._last = -1
        self._append_count = 0

    async def run(self, turns: int) -> str:
        """The whole session, over as many links as it takes; returns its last status."""
        message: Part = {
            "type": "response.create",
            "model": "sim",
            "input": "work through the night",
            "tools": TOOLS,
            "agent_loop": {"detach_ttl_s": TTL_S, "final": "hold"},
            "simulation": {"turns": script(self._random, turns)},
        }
        while True:
            async with self._connected() as link:
                self._say(link, message)
                while (stop := await self._wait_stop(link)) is not None:
                    if stop.state not in ("suspended", "idle"):
                        return stop.status
                    is_over = stop.state == "idle" and self.turn() >= turns
                    await self._answer(link, stop, is_over)
                    if self._random.random() < LINK_LOSS:
                        break
            message = {
                "type": "response.attach",
                "response_id": self._response_id,
                "starting_after": self._last,
            }

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[MemoryLink]:
        theirs, ours = memory_pair(self._clock, self._service.live.shared.journal.gate)
        connection = Connection(theirs, self._service, WS_APPEND)
        async with asyncio.TaskGroup() as group:
            group.create_task(connection.run())
            self.links += 1
            yield ours
            await self._clock.sleep(self._random.random())
            ours.abort()
        await theirs.close()
        await ours.close()

    def turn(self) -> int:
        """Model turns so far."""
        return self._service.live.get(self._response_id).response.turn

    def _say(self, link: MemoryLink, message: Part) -> None:
        link.send([msgspec.json.encode(message)])

    async def _wait_stop(self, link: MemoryLink) -> ResponseShown | None:
        """The next event at which the loop stops."""
        while True:
            event = self._decode(await link.recv())
            self._last = max(self._last, event.sequence_number)
            if event.type == CREATED and event.response is not None:
                self._response_id = event.response.id
            if event.type in TERMINALS or (event.type == DONE and not _goes_on(event)):
                return event.response
            assert event.type != "error", event

    async def _answer(self, link: MemoryLink, stop: ResponseShown, is_over: bool) -> None:
        wait_s = self._random.expovariate(1 / self._wait_s)
        calls = [call.call_id for call in stop.pending_tool_calls]
        if is_over:  # the last to answer is asleep until the morning
            await self._clock.sleep(self._until_s - self._clock.now())
            self._say(link, {"type": "response.close"})
        elif not calls:
            await self._clock.sleep(wait_s)
            self._append(link, [{"role": "user", "content": "go on"}])
        self._random.shuffle(calls)
        for call_id in calls:
            await self._clock.sleep(wait_s / len(calls))
            output = {"type": "function_call_output", "call_id": call_id, "output": "ok"}
            self._append(link, [output])

    def _append(self, link: MemoryLink, items: list[Part]) -> None:
        self._append_count += 1
        event_id = f"append-{self._append_count}"
        self._say(link, {"type": "response.append", "event_id": event_id, "input": items})


def _goes_on(event: _Event) -> bool:
    return event.response is not None and event.response.state == "sampling"


async def play(clock: Clock, turns: int, hours: float, seed: int, profile: str) -> Night:
    """One night on this clock."""
    journal = HashingJournal()
    options = ServerOptions(profile=profile, seed=seed, is_reproducible=True)
    service = assemble(options, clock, journal, Toolbox([Search(clock)]))
    night_s = hours * 3600
    agent = Agent(clock, service, Random(seed), night_s / turns, night_s)
    try:
        status = await agent.run(turns)
    finally:
        await service.close()
    return Night(
        turns=agent.turn(),
        virtual_s=clock.now(),
        records=journal.count,
        records_hash=journal.hexdigest(),
        links=agent.links,
        status=status,
    )


def night(turns: int, hours: float, seed: int, profile: str = PROFILE) -> Night:
    """One night in virtual time.

    Raises:
        Deadlock: client and server wait for each other.
    """
    return run_virtual(lambda clock: play(clock, turns, hours, seed, profile))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5_000, help="model turns (%(default)s)")
    parser.add_argument("--hours", type=float, default=8.0, help="virtual hours (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--profile", default=PROFILE, help="engine timing (%(default)s)")
    options = parser.parse_args()
    clock = WallClock()
    started_s = clock.now()
    played = night(options.turns, options.hours, options.seed, options.profile)
    real_s = clock.now() - started_s
    print(f"turns          {played.turns}")
    print(f"virtual hours  {played.virtual_s / 3600:.2f}")
    print(f"real seconds   {real_s:.2f}")
    print(f"links          {played.links}")
    print(f"records        {played.records}")
    print(f"records hash   {played.records_hash}")
    print(f"status         {played.status}")


if __name__ == "__main__":
    main()
