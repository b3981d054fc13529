"""What a suspended Response holds, and what the garbage collector makes of many of them.

Each case is a process of its own: a server's `Service` on memory links, as many lanes to a link as
one may carry, so that nearly all memory is the Responses'. Each Response is a session of real
text: a prompt, then tool turns of about 1,000 tokens each, until its context has the size; no text
and no token is shared. Then it waits for the next output. The simulated engine's cache holds
2,000,000 tokens, as that of `spark1000`, so it does not grow with the Responses.

- Memory: what the second half of the Responses adds to resident memory, by Response, each half
  after a full collection; so what was free or filled before them does not count.
- Parts: all objects that one Response reaches and that were not there before it.
- Pauses: those of the collector, by generation, while other sessions open, have turns and close;
  and one full collection. First with what the server does at its start (`gc.freeze`, thresholds),
  then with Python's own settings, then with the Responses frozen too.

    python -m bench.suspended [--quick] [--json FILE] [--seed N]
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Final, TypeVar

import msgspec
import uvloop
from msgspec import Raw, Struct
from msgspec.structs import replace

from agentloop.clock import WallClock
from agentloop.drive.event import ResponseShown, decode_event
from agentloop.engine.api import TokenIds
from agentloop.engine.sim.profiles import INSTANT, PROFILES, SPARK1000
from agentloop.errors import ServerFault
from agentloop.journal.memory import MemoryJournal
from agentloop.link.memory import MemoryLink, memory_pair
from agentloop.serve.append import WS_APPEND
from agentloop.serve.connection import Connection
from agentloop.serve.service import Service
from agentloop.server import app
from agentloop.server.assemble import assemble
from agentloop.server.options import ServerOptions
from agentloop.tokens.vocabulary import vocabulary, warm_up
from agentloop.wire import codec
from agentloop.wire.requests import Append, Create, Simulation
from bench import kit
from bench.depth import library_text
from bench.driver import TOOL, TOOL_TURN
from bench.figures import slope
from bench.kit import Check, Placement, Report

CASE_TIMEOUT_S: Final = 3_600.0
LANES: Final = 32  # to a link: what one may carry
TURN_TOKENS: Final = 1_000
PAGE_TOKENS: Final = 935  # of a tool's output; what the model says is the rest
OUTPUT: Final = b'[{"type":"function_call_output","call_id":"%b","output":%b}]'
CORPUS_TOKENS: Final = 2_000_000
SESSION_TURNS: Final = 20  # of the sessions that are at work meanwhile
MEMORY_SHARE_MAX: Final = 0.8  # of what the machine has left
GROWTH_RATIO_MAX: Final = 1.1
CHECKED_FROM = 1_000  # fewer are lost in what the allocator keeps
HALF, ALL, SERVERS, PYTHONS, FROZEN = "half built", "built", "server's", "Python's", "frozen too"
FULL: Final = "full"

clock = WallClock()
T = TypeVar("T")


class Sizes(Struct, frozen=True):
    """Tokens of context, numbers of Responses with each, and turns while pauses are taken."""

    contexts: tuple[int, ...] = (2_000, 100_000)
    responses: tuple[int, ...] = (1_000, 10_000)
    turns: int = 2_000


QUICK: Final = Sizes(contexts=(2_000,), responses=(256, 512), turns=100)


class Case(Struct, frozen=True):
    """One process: Responses with contexts of so many tokens, as many as were asked for or as fit,
    and turns meanwhile. Without Responses it takes one to pieces."""

    tokens: int
    turns: int
    seed: int
    cpu: int
    asked: int = 0
    responses: int = 0


class Pause(Struct):
    """Collections of one generation, or the full one that was asked for, under one setting."""

    setting: str
    generation: str
    count: int
    median_ms: float
    longest_ms: float


class Found(Struct):
    """What a case found: tokens as counted, resident KiB and tracked objects of each Response."""

    case: Case
    tokens: float
    kib: float
    tracked: float
    pauses: list[Pause]


class Parts(Struct):
    """What one Response is made of, in KiB by part."""

    tokens: float
    kib: dict[str, float]


def corpus(seed: int) -> TokenIds[int]:
    """The ids of real text: library source that is ASCII, as nearly all is."""
    ids: TokenIds[int] = TokenIds("I")
    for text in filter(str.isascii, library_text(seed)):
        ids.extend(vocabulary().encode(text))
        if len(ids) >= CORPUS_TOKENS:
            break
    return ids


def pages(ids: TokenIds[int], seed: int) -> Iterator[bytes]:
    """Pages from anywhere in it, as JSON."""
    random = Random(seed)
    while True:
        start = random.randrange(len(ids) - PAGE_TOKENS)
        yield codec.encode(vocabulary().decode(ids[start : start + PAGE_TOKENS].tolist()))


class Client:
    """The client's end of a link that carries many sessions, each on a lane of its own."""

    def __init__(self, link: MemoryLink, pages: Iterator[bytes]) -> None:
        self._link = link
        self._pages = pages

    async def session(self, lane: str, turns: int) -> int:
        """A session of so many turns, whose Response then waits for one more output; returns the
        tokens of its context."""
        simulation = Simulation(turns=[TOOL_TURN], turn=0)
        create = Create(model="sim-model", tools=[TOOL], store=False, simulation=simulation)
        shown = await self._turn(replace(create, input=Raw(next(self._pages)), stream_id=lane))
        for number in range(1, turns):
            (call,) = shown.pending_tool_calls
            output = Raw(OUTPUT % (call.call_id.encode(), next(self._pages)))
            append = Append(input=output, stream_id=lane, event_id=f"append-{number}")
            shown = await self._turn(append)
        assert shown.usage is not None, "each stop tells the usage"
        return shown.usage.input_tokens + shown.usage.output_tokens

    async def _turn(self, message: Create | Append) -> ResponseShown:
        self._link.send([codec.encode(message)])
        while not (frame := await self._link.recv()).startswith(b'{"type":"response.done"'):
            if frame.startswith(b'{"type":"error"'):
                raise ServerFault(f"the server refused: {frame.decode()}")
        shown = decode_event(frame).response
        assert shown is not None, "response.done has its Response"
        return shown


@asynccontextmanager
async def linked(service: Service, pages: Iterator[bytes]) -> AsyncIterator[Client]:
    """A link to the service."""
    theirs, ours = memory_pair(clock, service.live.shared.journal.gate)
    async with asyncio.TaskGroup() as group:
        group.create_task(Connection(theirs, service, WS_APPEND).run())
        yield Client(ours, pages)
        ours.abort()
    await theirs.close()
    await ours.close()


class Pauses:
    """The collector's pauses, by generation; a callback of `gc`."""

    def __init__(self) -> None:
        self._ms: dict[str, list[float]] = defaultdict(list)
        self._started_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started_s = clock.now()
        else:
            self._ms[str(info["generation"])].append((clock.now() - self._started_s) * 1e3)

    def take(self, setting: str) -> list[Pause]:
        """Those since the last call, then that of one full collection."""
        taken, self._ms = self._ms, defaultdict(list)
        gc.collect()
        taken[FULL], self._ms = self._ms["2"], defaultdict(list)
        return [
            Pause(setting, name, len(ms), median(ms), max(ms)) for name, ms in sorted(taken.items())
        ]


async def work(service: Service, pages: Iterator[bytes], turns: int) -> None:
    """Sessions open, have turns and are closed with their link."""
    for _ in range(0, turns, SESSION_TURNS):
        async with linked(service, pages) as client:
            await client.session("work", SESSION_TURNS)


async def measure_case(case: Case, service: Service, pages: Iterator[bytes]) -> Found:
    """Build the population, then look at memory and pauses."""
    pauses, taken, tokens, resident_mib = Pauses(), list[Pause](), list[int](), dict[int, float]()
    turns = case.tokens // TURN_TOKENS
    await work(service, pages, SESSION_TURNS)  # fills caches that all share
    gc.callbacks.append(pauses)
    async with AsyncExitStack() as stack:
        with app._calm_collector():
            pauses.take("")
            clients = list[Client]()
            for number in range(case.responses):
                lane = number % LANES
                if lane == 0:
                    clients.append(await stack.enter_async_context(linked(service, pages)))
                if number == case.responses // 2:
                    taken += pauses.take(HALF)
                    resident_mib[number] = kit.footprint(os.getpid()).resident_mib
                tokens.append(await clients[-1].session(f"lane-{lane}", turns))
            taken += pauses.take(ALL)
            resident_mib[case.responses] = kit.footprint(os.getpid()).resident_mib
            tracked = len(gc.get_objects()) / case.responses
            await work(service, pages, case.turns)
            taken += pauses.take(SERVERS)
        await work(service, pages, case.turns)
        taken += pauses.take(PYTHONS)
        gc.freeze()
        await work(service, pages, case.turns)
        taken += pauses.take(FROZEN)
    return Found(case, mean(tokens), slope(list(resident_mib.items())) * 1024, tracked, taken)


# What belongs to which part, by class: an object takes that of the nearest that holds it.
PARTS: Final = {
    "Context": "context", "Item": "items", "Record": "records", "Entry": "records",
    "Keys": "keys", "Calls": "calls", "Breakdown": "breakdown", "Transcript": "transcript",
    "Config": "config", "Lane": "lane", "Timer": "timers", "Task": "task and futures",
    "Future": "task and futures", "coroutine": "task and futures",
    "SimPrefix": "engine's prefix", "Scripted": "simulated model",
}  # fmt: skip


def reached(roots: Iterable[object], seen: dict[int, object]) -> Iterator[tuple[object, str]]:
    """All that the roots hold and that was not seen, with its part. `seen` is by address, and keeps
    what it has, so that no address is used again."""
    waiting = deque((root, "the rest") for root in roots)
    while waiting:
        held, part = waiting.popleft()
        if id(held) in seen:
            continue
        seen[id(held)] = held
        names = (base.__name__ for base in type(held).__mro__)
        part = next((PARTS[name] for name in names if name in PARTS), part)
        yield held, part
        if isinstance(held, Struct):  # the collector does not look into all of them
            waiting.extend((getattr(held, name), part) for name in held.__struct_fields__)
        else:
            waiting.extend((each, part) for each in gc.get_referents(held))


async def measure_parts(case: Case, service: Service, pages: Iterator[bytes]) -> Parts:
    """The parts of one Response."""
    async with linked(service, pages) as client:
        turns = case.tokens // TURN_TOKENS
        await client.session("before", turns)
        gc.collect()
        seen: dict[int, object] = {}
        deque(reached(gc.get_objects(), seen), maxlen=0)
        tokens = await client.session("lane", turns)
        live = list(service.live)[-1]
        records = service.live.shared.journal.read(live.response.id)
        sizes: Counter[str] = Counter()
        for held, part in reached([live, *records], seen):
            sizes[f"{part}: ids" if isinstance(held, TokenIds) else part] += sys.getsizeof(held)
        return Parts(tokens, {part: size / 1024 for part, size in sizes.most_common()})


def child(raw_case: str) -> None:
    """One case, in this process; its result is a line of JSON."""
    case = msgspec.json.decode(raw_case, type=Case)
    os.sched_setaffinity(0, {case.cpu})
    PROFILES[INSTANT.name] = replace(INSTANT, cache_tokens=SPARK1000.cache_tokens)
    texts = pages(TokenIds("I", sys.stdin.buffer.read()), case.seed)

    async def run() -> Found | Parts:
        service = assemble(ServerOptions(profile=INSTANT.name), clock, MemoryJournal())
        warm_up()
        measure = measure_case if case.responses else measure_parts
        try:
            return await measure(case, service, texts)
        finally:
            await service.close()

    print(msgspec.json.encode(uvloop.run(run())).decode())


async def _in_process(case: Case, ids: TokenIds[int], result: type[T]) -> T:
    pipe = subprocess.PIPE
    code = "import sys; from bench import suspended; suspended.child(sys.argv[1])"
    command = (sys.executable, "-c", code, codec.encode(case))
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, cwd=kit.ROOT, start_new_session=True
    )
    try:
        async with asyncio.timeout(CASE_TIMEOUT_S):
            out, _ = await process.communicate(ids.tobytes())
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise ServerFault(f"{case} ended with {process.returncode}")
    return msgspec.json.decode(out, type=result)


def left_kib() -> float:
    """Memory that the machine has left."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


async def measure(sizes: Sizes, placement: Placement, seed: int) -> tuple[list[Found], list[Parts]]:
    """Every case, with fewer Responses where what is known by then says that not all fit."""
    found, parts, ids = list[Found](), list[Parts](), corpus(seed)
    for tokens in sizes.contexts:
        case = Case(tokens, sizes.turns, seed, placement.server_cpu)
        parts.append(await _in_process(case, ids, Parts))
        kib = sum(parts[-1].kib.values())
        for asked in sizes.responses:
            fitting = int(left_kib() * MEMORY_SHARE_MAX / kib) // LANES * LANES
            case = replace(case, asked=asked, responses=min(asked, fitting))
            need_gib, count = asked * kib / 1024**2, case.responses
            kit.progress(f"{asked:,} x {tokens:,} tokens: about {need_gib:.1f} GiB; runs {count:,}")
            found.append(await _in_process(case, ids, Found))
            kit.progress(f"{found[-1].kib:,.1f} KiB each")
            kib = max(kib, found[-1].kib)
    return found, parts


# -- the report --------------------------------------------------------------------------------


def report(found: list[Found], parts: list[Parts], sizes: Sizes) -> Report:
    """Memory by case and by part, pauses by setting."""
    rows = [("", "tokens", "Responses", "KiB each, or ms: median, longest")]
    for each in found:
        of = (f"{each.tokens:,.0f}", f"{each.case.responses:,}")
        fits = "" if each.case.responses == each.case.asked else f"; {each.case.asked:,} do not fit"
        kib = f"{each.kib:,.1f}; {each.tracked:,.0f} tracked objects{fits}"
        rows.append(("resident", *of, kib))
        for pause in each.pauses:
            ms = f"{pause.median_ms:.2f}, {pause.longest_ms:.2f} of {pause.count}"
            rows.append((f"pause, {pause.setting}, {pause.generation}", *of, ms))
    for one in parts:
        of = (f"{one.tokens:,.0f}", "1")
        rows.append(("all parts", *of, f"{sum(one.kib.values()):,.1f}"))
        rows += [(f"part, {name}", *of, f"{kib:,.1f}") for name, kib in one.kib.items()]
    checks = [
        Check(
            f"KiB of one of {other.case.responses:,} to one of {one.case.responses:,}"
            f" at {one.case.tokens:,} tokens",
            other.kib / one.kib,
            GROWTH_RATIO_MAX,
        )
        for one, other in pairwise(found)
        if one.case.tokens == other.case.tokens and one.case.responses >= CHECKED_FROM
    ]
    return Report("suspended", sizes, rows, {"cases": found, "parts": parts}, checks)


async def bench(options: kit.Options, placement: Placement) -> Report:
    """Measure and report."""
    sizes = QUICK if options.is_quick else Sizes()
    return report(*await measure(sizes, placement, options.seed), sizes)


if __name__ == "__main__":
    kit.main(bench, __doc__ or "")
