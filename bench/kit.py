"""What the benches share: where they run, the servers, and the report.

A bench is `python -m bench.NAME [--quick] [--json FILE] [--seed N]`. It shows its progress on
stderr, prints a table and one line of JSON, and exits with 1 where a bound is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import uvloop
from msgspec import Struct

from agentloop.config import new_file
from agentloop.errors import AgentLoopError, ServerFault

ROOT: Final = Path(__file__).parents[1]
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0
PACKAGES: Final = ("aiohttp", "msgspec", "uvloop", "splintr-rs")


# -- where it runs -----------------------------------------------------------------------------


class Placement(Struct, frozen=True):
    """Which CPU is whose: the same one for both where this process may use no other."""

    driver_cpu: int
    server_cpu: int


def take_place() -> Placement:
    """Pin this process to the first of its CPUs; servers get the last one."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[0]})
    return Placement(allowed[0], allowed[-1])


class Machine(Struct):
    """With what the figures came about."""

    cpu: str
    cores: int
    kernel: str
    python: str
    packages: dict[str, str]
    commit: str
    placement: Placement
    load_average: tuple[float, float, float]

    def show(self) -> str:
        """One line."""
        cpus = f"driver on CPU {self.placement.driver_cpu}, server on {self.placement.server_cpu}"
        return f"{self.cpu}, {cpus}, load {self.load_average[0]:.2f}, commit {self.commit}"


def machine(placement: Placement) -> Machine:
    """The facts of this machine now."""
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        kernel=platform.release(),
        python=platform.python_version(),
        packages={name: version(name) for name in PACKAGES},
        commit=_commit(),
        placement=placement,
        load_average=os.getloadavg(),
    )


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


# -- servers -----------------------------------------------------------------------------------

OURS, NAIVE, JOINED = "ours", "naive floor", "joined floor"
SERVERS: Final[dict[str, tuple[str, ...]]] = {
    OURS: ("-m", "agentloop", "serve", "--profile", "instant", "--port", "0"),
    NAIVE: ("-m", "bench.floor_server", "--writes", "frame"),
    JOINED: ("-m", "bench.floor_server", "--writes", "joined"),
}


class Server(NamedTuple):
    """A server process that is ready."""

    name: str
    url: str
    process_id: int


def cpu_s(process_id: int) -> float:
    """The CPU time that the main thread of a process has used so far."""
    ran_ns, *_ = Path(f"/proc/{process_id}/schedstat").read_text().split()
    return int(ran_ns) / 1e9


class Footprint(NamedTuple):
    """What a process holds."""

    resident_mib: float
    descriptors: int


def footprint(process_id: int) -> Footprint:
    """What a process holds now."""
    process = Path(f"/proc/{process_id}")
    lines = (process / "status").read_text().splitlines()
    resident_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return Footprint(resident_kib / 1024, len(os.listdir(process / "fd")))


@asynccontextmanager
async def serving(names: Sequence[str], placement: Placement) -> AsyncIterator[list[Server]]:
    """These `SERVERS`, each a process of its own, ended again by its id whatever happens."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(_started(name, placement)) for name in names]


@asynccontextmanager
async def _started(name: str, placement: Placement) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *SERVERS[name],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,  # Ctrl-C is for the driver, which ends its servers in order
    )
    try:
        os.sched_setaffinity(process.pid, {placement.server_cpu})
        assert process.stdout is not None, "a pipe was asked for"
        async with asyncio.timeout(START_TIMEOUT_S):
            url = (await process.stdout.readline()).decode().strip().rpartition(" ")[2]
        if not url:
            raise ServerFault(f"the server {name!r} ended at its start")
        yield Server(name, url, process.pid)
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except BaseException:  # also where it is cancelled: no server may stay
        process.kill()
        raise


# -- the report --------------------------------------------------------------------------------


class Check(Struct):
    """A bound on a figure."""

    name: str
    value: float
    bound: float
    relation: Literal["<=", ">="] = "<="

    @property
    def is_met(self) -> bool:
        """Whether the figure keeps the bound."""
        return self.value <= self.bound if self.relation == "<=" else self.value >= self.bound

    def show(self) -> str:
        """One line."""
        verdict = "pass" if self.is_met else "FAIL"
        return f"{verdict}: {self.name}: {self.value:.2f} {self.relation} {self.bound:g}"


class Report(Struct):
    """What a bench found.

    Attributes:
        sizes: how much was run, by name.
        rows: the table, its header first.
        figures: the raw figures, by name.
    """

    bench: str
    sizes: Struct
    rows: Sequence[tuple[str, ...]]
    figures: dict[str, object]
    checks: list[Check]

    def show(self) -> str:
        """The table and the checks."""
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in self.rows]
        return "\n".join([*lines, *(check.show() for check in self.checks)])


class Options(NamedTuple):
    """The command line of every bench."""

    is_quick: bool
    json_path: Path | None
    seed: int


Bench = Callable[[Options, Placement], Awaitable[Report]]


def progress(text: str) -> None:
    """One line for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def main(bench: Bench, description: str) -> None:
    """Run a bench from the command line, and exit."""
    options = _parse(description)
    placement = take_place()
    facts = machine(placement)
    gc.collect()
    gc.freeze()
    try:
        report = uvloop.run(_terminable(bench(options, placement)))
    except AgentLoopError as fault:
        sys.exit(f"the bench failed: {fault}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    line = msgspec.json.encode({"seed": options.seed, **_as_json(report), "machine": facts})
    print(report.show(), facts.show(), line.decode(), sep="\n")
    if options.json_path is not None:
        options.json_path.write_bytes(line + b"\n")
    sys.exit(not all(check.is_met for check in report.checks))


def _parse(description: str) -> Options:
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a fraction of the runs")
    parser.add_argument("--json", metavar="FILE", help="write the line of JSON there too")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random choice")
    arguments = parser.parse_args()
    path = None if arguments.json is None else new_file(arguments.json)
    return Options(arguments.quick, path, arguments.seed)


async def _terminable(bench: Awaitable[Report]) -> Report:
    """The bench, ended by SIGTERM as by Ctrl-C: in order, with its servers."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await bench


def _as_json(report: Report) -> dict[str, object]:
    checks = [{**msgspec.structs.asdict(check), "is_met": check.is_met} for check in report.checks]
    return {
        "bench": report.bench,
        "sizes": report.sizes,
        "figures": report.figures,
        "checks": checks,
    }
