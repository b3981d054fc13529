"""A crowd of links on one server, and what two sick ones do to the healthy.

Each run is a crowd of its own: its links are opened, tool turns go on at some of them for a round
and are timed, its links are closed. Runs of two kinds alternate:

- *healthy*: every link reads, and answers the server's pings.
- *sick*: the same crowd and two more: a *stalled reader*, which asks for a long stream, has a small
  receive buffer and stops reading; and a *blackholed peer*, whose connection stays while nothing
  is read or answered at its end.

After each crowd the server has some seconds for itself; then its resident memory and open
descriptors are looked at. Nothing tells it to collect or to trim. One crowd of each kind warms it
up: memory is compared with that after them, and from crowd to crowd; descriptors with those before
any link. No Response is stored, so none is kept on purpose.

    python -m bench.crowd [--quick] [--json FILE] [--seed N]
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any, Final

import aiohttp
from msgspec import Raw, Struct

from agentloop.clock import WallClock
from agentloop.drive.event import decode_event
from agentloop.errors import LinkClosed
from agentloop.link.api import DEFAULT_LIMITS, TRY_AGAIN_LATER
from agentloop.wire import codec
from agentloop.wire.items import FunctionCallOutput
from agentloop.wire.requests import Append, Create, ScriptedPart, ScriptedRepeat, Simulation
from bench import kit
from bench.driver import TOOL, TOOL_OUTPUT, TOOL_TURN, Driver
from bench.figures import paired_ratio, percentile, slope
from bench.kit import OURS, Check, Footprint, Placement, Report

HEALTHY, SICK = "healthy", "sick"
P99_RATIO_MAX, P99_TURNS_MIN = 1.3, 1_000  # of fewer turns, p99 is shown but not checked
GROWTH_MIB_MAX: Final = 32.0  # allocators fragment; the links of one crowd hold about as much
RUN_TIMEOUT_S: Final = 120.0  # beside the round itself
OPENING_MAX: Final = 32  # connections at once: the server's backlog is no subject here
PROBE_S, DRAIN_TIMEOUT_S = 0.25, 5.0

WAIT_S: Final = (0.05, 0.15)  # between two turns of a timed link
STREAM_PROFILE: Final = "gpu65"  # 65 tokens/s each, and a slot for each
STREAM_TURN: Final = [ScriptedPart(repeat=ScriptedRepeat("and so on ", 130)), TOOL_TURN[1]]
LONG_TOKEN: Final = 179_041  # 113 characters: fewer events fill the link's queue
SMALL_BUFFER_BYTES, LARGE_BUFFER_BYTES = 1 << 14, 1 << 22
UNREAD_TOKENS, CLUMP_TOKENS = 120_000, 16
_DELTA: Final = b"response.output_text.delta"

clock = WallClock()


class Sizes(Struct, frozen=True):
    """How much is run.

    Attributes:
        suspended: links whose Response waits for a tool's output.
        streaming: links whose Response says text nearly all the time.
        timed: links with tool turns all the time; these are measured.
        idle: links without a Response.
        round_s: how long each crowd is measured; one and a half heartbeats show a loss.
        rest_s: the server's own time after each crowd, more than it waits for any goodbye.
        unread_tokens_per_s: the pace of the stream that nobody reads.
    """

    suspended: int = 300
    streaming: int = 50
    timed: int = 10
    idle: int = 140
    rounds: int = 3
    round_s: float = 55.0
    rest_s: float = 8.0
    unread_tokens_per_s: int = 8_000


QUICK: Final = Sizes(60, 10, 10, 20, 2, round_s=3.0, rest_s=1.0, unread_tokens_per_s=150_000)


class Fate(Struct):
    """When the server gave a sick link up, and the code that the client could then still read."""

    lost_s: float | None = None
    close_code: int | None = None

    def show(self) -> str:
        """A few words."""
        if self.lost_s is None:
            return "still held"
        how = "lost" if self.close_code is None else f"closed with {self.close_code}"
        return f"{how} after {self.lost_s:.1f} s"


class Run(Struct):
    """One crowd. `open` and `rest`: what the server held with all links and after them."""

    kind: str
    turns: int
    p50_us: float
    p99_us: float
    slowest_us: float
    deltas_per_s: float
    server_load: float
    open: Footprint
    rest: Footprint
    stalled: Fate | None
    blackholed: Fate | None


class Socket(aiohttp.ClientWebSocketResponse[Any]):
    """aiohttp's client, with its transport: reading can be stopped."""

    def __init__(self, reader: Any, writer: Any, *args: Any, **options: Any) -> None:
        super().__init__(reader, writer, *args, **options)
        self.transport: asyncio.Transport = writer.transport


@asynccontextmanager
async def connecting(url: str) -> AsyncIterator[Callable[[], Awaitable[Socket]]]:
    """Opens as many links as one likes."""
    address = f"{url}/v1/responses?protocol=append"
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, ws_response_class=Socket) as session:
        connect: Any = session.ws_connect
        yield partial(connect, address, decode_text=False, compress=0, max_msg_size=0)


def endless(turn: list[ScriptedPart], seed: int, profile: str = "instant") -> Create:
    """A create whose every turn says the same."""
    return Create(
        model="sim-model",
        input=Raw(codec.encode("Fix the test.")),
        tools=[TOOL],
        store=False,
        max_output_tokens=UNREAD_TOKENS,
        simulation=Simulation(turns=[turn], profile=profile, seed=seed, turn=0),
    )


class Crowd:
    """The links, each with a task of its own.

    Attributes:
        latencies_us: of the timed turns so far: from sending the append to `response.done`.
        deltas: text deltas of the streams' whole turns so far.
        missing, is_complete: links that are still to come, and whether none is.
    """

    def __init__(self, connect: Callable[[], Awaitable[Socket]], sizes: Sizes, seed: int) -> None:
        self.latencies_us: list[float] = []
        self.deltas = 0
        self._connect = connect
        self._random = Random(seed)
        self._door = asyncio.Semaphore(OPENING_MAX)
        self.is_complete = asyncio.Event()
        self._members: list[Callable[[Socket, int], Awaitable[None]]] = [
            *[self._suspended] * sizes.suspended,
            *[self._streaming] * sizes.streaming,
            *[self._timed] * sizes.timed,
            *[self._idle] * sizes.idle,
        ]
        self.missing = len(self._members)

    async def member(self, number: int) -> None:
        """One link, from its opening until it is cancelled."""
        async with self._door:
            link = await self._connect()
        try:
            await self._members[number](link, number)
        finally:
            await link.close()

    def _arrive(self) -> None:
        self.missing -= 1
        if self.missing == 0:
            self.is_complete.set()

    async def _suspended(self, link: Socket, number: int) -> None:
        await Driver(link).create(endless(TOOL_TURN, number))
        await self._idle(link, number)

    async def _idle(self, link: Socket, number: int) -> None:
        self._arrive()
        message = await link.receive()  # aiohttp answers pings meanwhile
        raise LinkClosed(f"the server ended a healthy link: {message.data} {message.extra}")

    async def _streaming(self, link: Socket, number: int) -> None:
        client = Driver(link)
        self._arrive()
        turn = await client.create(endless(STREAM_TURN, number, STREAM_PROFILE))
        while True:
            self.deltas += sum(_DELTA in frame[:40] for frame in turn.frames)
            turn = await client.answer("ok")

    async def _timed(self, link: Socket, number: int) -> None:
        client = Driver(link)
        await client.create(endless(TOOL_TURN, number))
        self._arrive()
        while True:
            await clock.sleep(self._random.uniform(*WAIT_S))
            self.latencies_us.append((await client.answer(TOOL_OUTPUT)).latency_s * 1e6)


@asynccontextmanager
async def crowd_of(url: str, sizes: Sizes, seed: int) -> AsyncIterator[Crowd]:
    """The crowd, complete."""
    async with connecting(url) as connect, asyncio.TaskGroup() as group:
        crowd = Crowd(connect, sizes, seed)
        tasks = [group.create_task(crowd.member(number)) for number in range(crowd.missing)]
        await crowd.is_complete.wait()
        gc.freeze()  # pauses of the driver are no subject here
        yield crowd
        gc.unfreeze()
        for task in tasks:
            task.cancel()


def long_stream(tokens_per_s: int) -> Create:
    """One turn that says more than a link may hold unread, at this pace."""
    pause = ScriptedPart(stall_ms=1e3 * CLUMP_TOKENS / tokens_per_s)
    clump = [ScriptedPart(raw_tokens=[LONG_TOKEN] * CLUMP_TOKENS), pause]
    return endless(clump * (UNREAD_TOKENS // CLUMP_TOKENS), seed=0)


def set_receive_buffer(link: Socket, size: int) -> None:
    """How much the kernel takes in for a link that does not read."""
    link.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


async def fall_sick(link: Socket, create: Create, last: bytes) -> str:
    """Open a Response, and read no more after the first event of this type. Returns its id."""
    set_receive_buffer(link, SMALL_BUFFER_BYTES)
    await link.send_frame(codec.encode(create), aiohttp.WSMsgType.TEXT)
    created = decode_event((await link.receive()).data).response
    assert created is not None, "the first event is response.created"
    while last not in (await link.receive()).data[:40]:
        pass
    link.transport.pause_reading()
    return created.id


async def watch(response_id: str, probe: Socket, fate: Fate) -> None:
    """Wait until the server gives a sick link up: its Response, which is not stored, goes with it.

    The server is asked by an output for a call that it does not know, which changes nothing.
    """
    output = FunctionCallOutput(call_id="none", output="")
    append = codec.encode(Append(input=Raw(codec.encode([output])), response_id=response_id))
    since_s, refusal = clock.now(), b""
    while b'"response_not_found"' not in refusal:
        await clock.sleep(PROBE_S)
        await probe.send_frame(append, aiohttp.WSMsgType.TEXT)
        refusal = (await probe.receive()).data
    fate.lost_s = clock.now() - since_s


async def hear_end(link: Socket, fate: Fate) -> None:
    """Read again, up to how the server said goodbye."""
    set_receive_buffer(link, LARGE_BUFFER_BYTES)
    link.transport.resume_reading()
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            while (await link.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
    fate.close_code = link.close_code


@asynccontextmanager
async def sick_links(url: str, sizes: Sizes) -> AsyncIterator[tuple[Fate, Fate]]:
    """The stalled reader and the blackholed peer, and what becomes of them meanwhile."""
    fates = Fate(), Fate()
    async with connecting(url) as connect, asyncio.TaskGroup() as group:
        links = [await connect() for _ in range(4)]
        stalled = await fall_sick(links[0], long_stream(sizes.unread_tokens_per_s), _DELTA)
        blackholed = await fall_sick(links[1], endless(TOOL_TURN, 0), b"response.done")

        async def watch_stalled() -> None:
            await watch(stalled, links[2], fates[0])
            await hear_end(links[0], fates[0])

        watchers = (watch_stalled(), watch(blackholed, links[3], fates[1]))
        tasks = [group.create_task(watcher) for watcher in watchers]
        try:
            yield fates
        finally:
            for task in tasks:
                task.cancel()
            for link in links:
                link.transport.abort()


async def _run(server: kit.Server, kind: str, sizes: Sizes, seed: int) -> Run:
    process_id = server.process_id
    fates: tuple[Fate | None, Fate | None] = None, None
    async with asyncio.timeout(RUN_TIMEOUT_S + sizes.round_s), AsyncExitStack() as stack:
        crowd = await stack.enter_async_context(crowd_of(server.url, sizes, seed))
        if kind == SICK:
            fates = await stack.enter_async_context(sick_links(server.url, sizes))
        crowd.latencies_us.clear()
        opened = kit.footprint(process_id)
        deltas, cpu_s = crowd.deltas, kit.cpu_s(process_id)
        await clock.sleep(sizes.round_s)
        deltas, cpu_s = crowd.deltas - deltas, kit.cpu_s(process_id) - cpu_s
        latencies_us = list(crowd.latencies_us)
    await clock.sleep(sizes.rest_s)
    return Run(
        kind=kind,
        turns=len(latencies_us),
        p50_us=percentile(latencies_us, 50),
        p99_us=percentile(latencies_us, 99),
        slowest_us=max(latencies_us),
        deltas_per_s=deltas / sizes.round_s,
        server_load=cpu_s / sizes.round_s,
        open=opened,
        rest=kit.footprint(process_id),
        stalled=fates[0],
        blackholed=fates[1],
    )


async def measure(sizes: Sizes, placement: Placement, seed: int) -> tuple[Footprint, list[Run]]:
    """What the server held before any link, and all crowds, those of the warm-up first."""
    runs = []
    async with kit.serving([OURS], placement) as (server,):
        before = kit.footprint(server.process_id)
        for number in range(1 + sizes.rounds):
            for kind in (HEALTHY, SICK):
                run = await _run(server, kind, sizes, seed + number)
                kit.progress(f"round {number} of {sizes.rounds}: {' | '.join(_row(run))}")
                runs.append(run)
    return before, runs


def report(before: Footprint, runs: list[Run], sizes: Sizes) -> Report:
    """Every crowd, and the bounds."""
    warm, measured = runs[1].rest, runs[2:]
    healthy, sick = measured[::2], measured[1::2]
    ratio = paired_ratio([run.p99_us for run in sick], [run.p99_us for run in healthy])
    rests = [run.rest.resident_mib for run in measured]
    growth_mib = rests[-1] - warm.resident_mib
    figures = {
        "p99_sick_to_healthy": ratio,
        "before": before,
        "growth_mib": growth_mib,
        "growth_mib_per_crowd": slope(list(enumerate([warm.resident_mib, *rests]))),
        "runs": runs,
    }
    fates = [(run.stalled or Fate(), run.blackholed or Fate()) for run in sick]
    refused = sum(stalled.close_code == TRY_AGAIN_LATER for stalled, _ in fates)
    lost = sum(blackholed.lost_s is not None for _, blackholed in fates)
    is_due = sizes.round_s > 1.5 * (DEFAULT_LIMITS.heartbeat_s or 0.0)
    left = max(abs(run.rest.descriptors - before.descriptors) for run in runs)
    checks = [
        Check("stalled readers closed with 1013", refused, len(sick), ">="),
        Check("blackholed peers given up", lost, len(sick) * is_due, ">="),
        Check("descriptors more or fewer than before any link", left, 0),
        Check("resident MiB more than after the warm-up", growth_mib, GROWTH_MIB_MAX),
    ]
    if min(run.turns for run in measured) >= P99_TURNS_MIN:
        what = "p99 of healthy turns, with sick links to without"
        checks.insert(0, Check(what, ratio.median, P99_RATIO_MAX))
    columns = "crowd,turns,p50 us,p99 us,slowest,deltas/s,server load,MiB open,MiB after,fds"
    rows = [(*columns.split(","), "stalled reader", "blackholed peer"), *map(_row, runs)]
    return Report("crowd", sizes, rows, figures, checks)


def _row(run: Run) -> tuple[str, ...]:
    counts = (run.turns, run.p50_us, run.p99_us, run.slowest_us, run.deltas_per_s)
    sizes = (run.open.resident_mib, run.rest.resident_mib)
    return (
        run.kind,
        *(f"{count:,.0f}" for count in counts),
        f"{run.server_load:.2f}",
        *(f"{size:.1f}" for size in sizes),
        str(run.rest.descriptors),
        *(fate.show() if fate else "" for fate in (run.stalled, run.blackholed)),
    )


async def bench(options: kit.Options, placement: Placement) -> Report:
    """Measure and report."""
    sizes = QUICK if options.is_quick else Sizes()
    before, runs = await measure(sizes, placement, options.seed)
    return report(before, runs, sizes)


if __name__ == "__main__":
    kit.main(bench, __doc__ or "")
