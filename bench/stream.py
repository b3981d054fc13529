"""Text deltas on one link without an engine's time: how many a server can say.

One Response streams one long text, `instant` samples one token a step, and each token is an event
of its own. The rate is taken at the client, after the first delta, for our server and for the
floors, in turn.

    python -m bench.stream [--quick] [--json FILE] [--seed N]
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from typing import Final

from msgspec import Struct

from agentloop.errors import ServerFault
from agentloop.wire.requests import ScriptedPart, ScriptedRepeat
from bench import driver, kit
from bench.figures import paired_ratio, spread
from bench.kit import JOINED, NAIVE, OURS, Check, Placement, Report

RATE_RATIO_MIN: Final = 1.0
RUN_TIMEOUT_S: Final = 120.0
TEXT: Final = "The quick brown fox jumps over the lazy dog. "


class Sizes(Struct, frozen=True):
    """How much is run. Each server streams once more before the first round."""

    rounds: int = 7
    tokens: int = 50_000


QUICK: Final = Sizes(rounds=3, tokens=20_000)


class Run(Struct):
    """One server in one round; CPU times are per delta, of the server and of the client.

    Where the client's CPU time is all of the time, the server could say more than it heard.
    """

    server: str
    deltas: int
    deltas_per_s: float
    first_ms: float
    cpu_us: float
    client_cpu_us: float


async def measure(sizes: Sizes, placement: Placement) -> list[Run]:
    """Every server in every round."""
    runs = []
    async with kit.serving([OURS, NAIVE, JOINED], placement) as servers:
        for server in servers:
            await _run(server, sizes)
        for number in range(sizes.rounds):
            for server in servers:
                run = await _run(server, sizes)
                kit.progress(
                    f"round {number + 1} of {sizes.rounds}, {server.name}:"
                    f" {run.deltas_per_s:,.0f} deltas/s"
                )
                runs.append(run)
    if len({run.deltas for run in runs}) > 1:
        raise ServerFault("the servers do not say the same deltas")
    return runs


async def _run(server: kit.Server, sizes: Sizes) -> Run:
    turn = [ScriptedPart(repeat=ScriptedRepeat(TEXT, sizes.tokens))]
    processes = (server.process_id, os.getpid())
    async with asyncio.timeout(RUN_TIMEOUT_S), driver.linked(server.url) as client:
        started_s = [kit.cpu_s(each) for each in processes]
        stream = await client.stream(driver.scripted([turn]))
        used_s = [kit.cpu_s(each) - at_s for each, at_s in zip(processes, started_s, strict=True)]
    cpu_us, client_cpu_us = (each_s / stream.deltas * 1e6 for each_s in used_s)
    return Run(
        server=server.name,
        deltas=stream.deltas,
        deltas_per_s=stream.deltas_per_s,
        first_ms=stream.first_s * 1e3,
        cpu_us=cpu_us,
        client_cpu_us=client_cpu_us,
    )


def report(runs: list[Run], sizes: Sizes) -> Report:
    """The table, and the bound on our rate."""
    by_server: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_server[run.server].append(run)
    rates = {name: [run.deltas_per_s for run in of] for name, of in by_server.items()}
    rows = [
        ("server", "deltas/s", "server cpu us/delta", "client cpu", "first delta ms", "ours / this")
    ]
    for name, of in by_server.items():
        rows.append(
            (
                name,
                spread(rates[name]).show(0),
                spread([run.cpu_us for run in of]).show(2),
                spread([run.client_cpu_us for run in of]).show(2),
                spread([run.first_ms for run in of]).show(),
                paired_ratio(rates[OURS], rates[name]).show(2),
            )
        )
    to_naive = paired_ratio(rates[OURS], rates[NAIVE])
    figures = {
        "ours_to_naive_rate": to_naive,
        "ours_to_joined_rate": paired_ratio(rates[OURS], rates[JOINED]),
        "runs": runs,
    }
    what = "deltas/s, ours to the naive floor"
    check = Check(what, to_naive.median, RATE_RATIO_MIN, ">=")
    return Report("stream", sizes, rows, figures, [check])


async def bench(options: kit.Options, placement: Placement) -> Report:
    """Measure and report."""
    sizes = QUICK if options.is_quick else Sizes()
    return report(await measure(sizes, placement), sizes)


if __name__ == "__main__":
    kit.main(bench, __doc__ or "")
