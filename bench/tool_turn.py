"""A tool turn on `ws-append` without an engine's time: what the API itself costs.

From sending `response.append` to receiving `response.done`, for our server and for the floors,
in turn. All servers say the same events; `instant` samples one token a step.

    python -m bench.tool_turn [--quick] [--json FILE] [--seed N]
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from msgspec import Struct

from agentloop.errors import ServerFault
from bench import driver, kit
from bench.figures import paired_ratio, percentile, spread
from bench.kit import JOINED, NAIVE, OURS, Check, Placement, Report

P50_RATIO_MAX: Final = 2.5
RUN_TIMEOUT_S: Final = 300.0


class Sizes(Struct, frozen=True):
    """How much is run."""

    rounds: int = 5
    turns: int = 2_000
    warm_up_turns: int = 100


QUICK: Final = Sizes(rounds=3, turns=400, warm_up_turns=50)


class Run(Struct):
    """One server in one round; times in microseconds."""

    server: str
    p50_us: float
    p99_us: float
    cpu_us: float
    event_types: list[str]


async def measure(sizes: Sizes, placement: Placement) -> list[Run]:
    """Every server in every round."""
    runs = []
    async with kit.serving([OURS, NAIVE, JOINED], placement) as servers:
        for number in range(sizes.rounds):
            for server in servers:
                run = await _run(server, sizes)
                kit.progress(
                    f"round {number + 1} of {sizes.rounds}, {server.name}: p50 {run.p50_us:.0f} us"
                )
                runs.append(run)
    if any(run.event_types != runs[0].event_types for run in runs):
        raise ServerFault("the servers do not say the same events")
    return runs


async def _run(server: kit.Server, sizes: Sizes) -> Run:
    create = driver.scripted([driver.TOOL_TURN] * (1 + sizes.warm_up_turns + sizes.turns))
    async with asyncio.timeout(RUN_TIMEOUT_S), driver.linked(server.url) as client:
        turn = await client.create(create)
        for _ in range(sizes.warm_up_turns):
            turn = await client.answer(driver.TOOL_OUTPUT)
        latencies_us = []
        started_cpu_s = kit.cpu_s(server.process_id)
        for _ in range(sizes.turns):
            turn = await client.answer(driver.TOOL_OUTPUT)
            latencies_us.append(turn.latency_s * 1e6)
        used_cpu_s = kit.cpu_s(server.process_id) - started_cpu_s
    return Run(
        server=server.name,
        p50_us=percentile(latencies_us, 50),
        p99_us=percentile(latencies_us, 99),
        cpu_us=used_cpu_s / sizes.turns * 1e6,
        event_types=driver.event_types(turn),
    )


def report(runs: list[Run], sizes: Sizes) -> Report:
    """The table, and the bound on our p50."""
    by_server: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_server[run.server].append(run)
    p50s = {name: [run.p50_us for run in of] for name, of in by_server.items()}
    rows = [("server", "p50 us", "p99 us", "server cpu us/turn", "ours / this, p50")]
    for name, of in by_server.items():
        rows.append(
            (
                name,
                spread(p50s[name]).show(),
                spread([run.p99_us for run in of]).show(),
                spread([run.cpu_us for run in of]).show(),
                paired_ratio(p50s[OURS], p50s[name]).show(2),
            )
        )
    to_naive = paired_ratio(p50s[OURS], p50s[NAIVE])
    figures = {
        "events_per_turn": len(runs[0].event_types),
        "ours_to_naive_p50": to_naive,
        "ours_to_joined_p50": paired_ratio(p50s[OURS], p50s[JOINED]),
        "runs": [
            {"server": run.server, "p50_us": run.p50_us, "p99_us": run.p99_us, "cpu_us": run.cpu_us}
            for run in runs
        ],
    }
    check = Check("p50 of a tool turn, ours to the naive floor", to_naive.median, P50_RATIO_MAX)
    return Report("tool_turn", sizes, rows, figures, [check])


async def bench(options: kit.Options, placement: Placement) -> Report:
    """Measure and report."""
    sizes = QUICK if options.is_quick else Sizes()
    return report(await measure(sizes, placement), sizes)


if __name__ == "__main__":
    kit.main(bench, __doc__ or "")
