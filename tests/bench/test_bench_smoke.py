"""The benches in their smallest size: they run, they are fair, and they end what they started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

from agentloop.errors import ServerFault
from agentloop.wire.requests import ScriptedCall, ScriptedPart
from bench import crowd, depth, driver, figures, kit, stream, suspended, tool_turn
from bench.crowd import HEALTHY, SICK, Fate
from bench.kit import JOINED, NAIVE, OURS, SERVERS, Check, Footprint, Placement

ROOT = Path(__file__).parents[2]
CALL = ScriptedPart(call=ScriptedCall("shell", {"cmd": "ls", "timeout_ms": 10}))


@pytest.fixture
def placement() -> Placement:
    """The CPUs of a bench, without pinning the tests."""
    allowed = sorted(os.sched_getaffinity(0))
    return Placement(allowed[0], allowed[-1])


async def test_floors_say_what_our_server_says(placement: Placement) -> None:
    turns = [
        [ScriptedPart(reasoning="Look: naïve \N{SNOWMAN} \N{FOX FACE}."), CALL],
        [ScriptedPart(text="Two calls."), CALL, CALL],
        [ScriptedPart(reasoning="Enough."), ScriptedPart(text='It is "done" now.')],
    ]
    said = []
    async with kit.serving(list(SERVERS), placement) as servers:
        for server in servers:
            async with driver.linked(server.url) as client:
                first = await client.create(driver.scripted([turns[0], turns[2]]))
                second = await client.answer("output")
                third = await client.create(driver.scripted([turns[1]]))
                said.append([_sizes(turn) for turn in (first, second, third)])
    ours, naive, joined = said
    assert naive == ours
    assert joined == ours
    assert [types[0][0] for types in ours][:2] == ["response.created", "response.append.accepted"]


def _sizes(turn: driver.Turn) -> list[tuple[str, int]]:
    """Type and size of each event; the size of the last one depends on usage, so it is left out."""
    sizes = [len(frame) for frame in turn.frames]
    return list(zip(driver.event_types(turn), [*sizes[:-1], 0], strict=True))


async def test_tool_turn_measures_every_server(placement: Placement) -> None:
    sizes = tool_turn.Sizes(rounds=2, turns=3, warm_up_turns=1)
    runs = await tool_turn.measure(sizes, placement)
    assert [run.server for run in runs] == [OURS, NAIVE, JOINED] * 2
    assert all(0 < run.p50_us <= run.p99_us for run in runs)
    assert all(run.cpu_us > 0 for run in runs)
    found = tool_turn.report(runs, sizes)
    assert len(found.rows) == 4
    assert found.figures["events_per_turn"] == len(runs[0].event_types)


def test_tool_turn_holds_the_median_of_the_paired_ratios_to_its_bound() -> None:
    p50s = {OURS: (240.0, 260.0, 900.0), NAIVE: (100.0, 100.0, 360.0), JOINED: (50.0, 50.0, 50.0)}
    runs = [
        tool_turn.Run(name, p50s[name][number], 1_000.0, 90.0, ["response.done"])
        for number in range(3)
        for name in p50s
    ]
    (check,) = tool_turn.report(runs, tool_turn.Sizes()).checks
    assert check.value == pytest.approx(2.5)
    assert check.is_met


async def test_stream_counts_every_delta(placement: Placement) -> None:
    sizes = stream.Sizes(rounds=1, tokens=3_000)
    runs = await stream.measure(sizes, placement)
    assert [(run.server, run.deltas) for run in runs] == [
        (OURS, 3_000), (NAIVE, 3_000), (JOINED, 3_000)
    ]  # fmt: skip
    (check,) = stream.report(runs, sizes).checks
    assert check.relation == ">="


async def test_depth_reaches_its_contexts(placement: Placement) -> None:
    sizes = depth.Sizes(
        sessions=2, turns=9, warm_up_turns=3, contexts=1, pairs=2, warm_up_pairs=1,
        small_tokens=500, large_tokens=20_000,
    )  # fmt: skip
    async with kit.serving([OURS], placement) as (server,):
        sessions = await depth.measure_turns(server, sizes, seed=0)
        contexts = await depth.measure_contexts(server, sizes, seed=0)
    assert [len(session) for session in sessions] == [6, 6]
    assert 400 < contexts[0].small_tokens < 700
    assert 19_800 < contexts[0].large_tokens < 20_300
    assert len(depth.report(sessions, contexts, sizes, seed=0).checks) == 2


def test_depth_reads_growth_off_the_line() -> None:
    flat = [100.0] * 200
    rising = [100.0 + 0.2 * turn for turn in range(200)]
    assert depth.growth_percent([flat, flat]) == pytest.approx(0)
    growth = depth.growth_percent([rising])
    assert growth == pytest.approx(100 * 20 / figures.spread(rising).median)
    upper = figures.upper_bound([flat, flat, flat, rising], depth.growth_percent, Random(0))
    assert growth / 4 < upper < growth


def test_pages_are_real_and_all_different() -> None:
    texts = depth.pages(seed=1, count=30)
    assert len(set(texts)) == 30
    assert {len(text) for text in texts} == {depth.PAGE_CHARS}
    assert texts == depth.pages(seed=1, count=30)
    assert texts != depth.pages(seed=2, count=30)


# -- crowds ------------------------------------------------------------------------------------


async def test_a_crowd_is_healthy_beside_the_sick(placement: Placement) -> None:
    sizes = crowd.Sizes(
        suspended=6, streaming=2, timed=3, idle=2, rounds=0, round_s=3.0, rest_s=1.0,
        unread_tokens_per_s=200_000,
    )  # fmt: skip
    before, (healthy, sick) = await crowd.measure(sizes, placement, seed=0)
    assert (healthy.kind, healthy.stalled, healthy.blackholed) == (HEALTHY, None, None)
    for run in (healthy, sick):
        assert run.turns > sizes.timed
        assert 0 < run.p50_us <= run.p99_us <= run.slowest_us
        assert run.deltas_per_s > 0
        assert (
            run.open.descriptors >= before.descriptors + 13
        )  # the links; more where some are sick
        assert run.rest.descriptors == before.descriptors
    assert sick.kind == SICK
    assert sick.stalled is not None
    assert sick.stalled.close_code == 1013
    assert sick.blackholed == Fate()  # no heartbeat is over yet


@pytest.mark.parametrize(
    ("change", "is_met"),
    [
        ({}, [True] * 5),
        ({"p99_us": 1_310.0}, [False, True, True, True, True]),
        ({"p99_us": 1_310.0, "turns": 900}, [True] * 4),
        ({"stalled": Fate(9.5, 1006)}, [True, False, True, True, True]),
        ({"blackholed": Fate()}, [True, True, False, True, True]),
        ({"rest": Footprint(100.0, 18)}, [True, True, True, False, True]),
        ({"rest": Footprint(133.0, 19)}, [True, True, True, True, False]),
    ],
)
def test_crowd_bounds(change: dict[str, object], is_met: list[bool]) -> None:
    healthy = crowd.Run(
        kind=HEALTHY, turns=5_000, p50_us=500.0, p99_us=1_000.0, slowest_us=2_000.0,
        deltas_per_s=65.0, server_load=0.1, open=Footprint(120.0, 519), rest=Footprint(100.0, 19),
        stalled=None, blackholed=None,
    )  # fmt: skip
    warm = msgspec.structs.replace(
        healthy, kind=SICK, p99_us=1_290.0, stalled=Fate(9.5, 1013), blackholed=Fate(45.2)
    )
    sick = msgspec.structs.replace(warm, **change)
    found = crowd.report(Footprint(80.0, 19), [healthy, warm, healthy, sick], crowd.Sizes(rounds=1))
    assert [check.is_met for check in found.checks] == is_met
    assert (
        "lost after 45.2 s"
        in crowd.report(
            Footprint(80.0, 19), [healthy, warm, healthy, warm], crowd.Sizes(rounds=1)
        ).show()
    )


async def test_suspended_counts_what_a_response_holds(monkeypatch, placement: Placement) -> None:
    monkeypatch.setattr(suspended, "CORPUS_TOKENS", 50_000)
    sizes = suspended.Sizes(contexts=(3_000,), responses=(64,), turns=20)
    (found,), (parts,) = await suspended.measure(sizes, placement, seed=0)
    assert found.case.responses == found.case.asked == 64
    assert 2_700 < found.tokens < 3_300
    ids_kib = parts.kib["context: ids"] + parts.kib["records: ids"]
    assert 4 * 2_700 / 1_024 < ids_kib < 2 * 4 * 2_700 / 1_024, "kept once, for the most part"
    assert sum(parts.kib.values()) < found.kib * 2
    settings = {pause.setting for pause in found.pauses if pause.generation == suspended.FULL}
    assert len(settings) == 5
    report = suspended.report([found], [parts], sizes)
    assert not report.checks  # one number of Responses grows to no other
    assert "do not fit" not in report.show()


async def test_suspended_runs_as_many_as_fit(monkeypatch, placement: Placement) -> None:
    monkeypatch.setattr(suspended, "CORPUS_TOKENS", 50_000)
    monkeypatch.setattr(suspended, "left_kib", lambda: 4_500.0)
    sizes = suspended.Sizes(contexts=(2_000,), responses=(1_000,), turns=20)
    found, parts = await suspended.measure(sizes, placement, seed=0)
    assert 32 <= found[0].case.responses < 4_500 / 32
    assert found[0].case.responses % suspended.LANES == 0
    assert "1,000 do not fit" in suspended.report(found, parts, sizes).show()


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3.0], 99, 3.0), ([1.0, 2.0, 3.0, 4.0], 50, 3.0), (range(1, 101), 99, 100)],
)
def test_percentile(values: list[float], percent: float, expected: float) -> None:
    assert figures.percentile(values, percent) == expected


def test_ratios_are_paired() -> None:
    assert figures.paired_ratio([2.0, 40.0, 3.0], [1.0, 10.0, 1.0]).median == 3.0


@pytest.mark.parametrize(
    ("relation", "value", "is_met"),
    [("<=", 2.5, True), ("<=", 2.51, False), (">=", 1.0, True), (">=", 0.99, False)],
)
def test_check(relation, value, is_met) -> None:
    bound = 2.5 if relation == "<=" else 1.0
    assert Check("figure", value, bound, relation).is_met is is_met


# -- processes ---------------------------------------------------------------------------------


async def test_servers_end_with_the_bench_whatever_happens(placement: Placement) -> None:
    process_ids: list[int] = []

    async def fail() -> None:
        async with kit.serving([OURS, NAIVE], placement) as servers:
            process_ids.extend(server.process_id for server in servers)
            raise ServerFault("on purpose")

    with pytest.raises(ServerFault, match="on purpose"):
        await fail()
    assert len(process_ids) == 2
    assert not any(map(_is_running, process_ids))


async def test_a_server_that_cannot_start_is_said(monkeypatch, placement: Placement) -> None:
    monkeypatch.setitem(SERVERS, "broken", ("-c", "raise SystemExit(3)"))
    with pytest.raises(ServerFault, match="'broken' ended at its start"):
        async with kit.serving(["broken"], placement):
            pass


async def test_ctrl_c_ends_bench_and_servers() -> None:
    bench = await _start("-m", "bench.tool_turn")
    assert bench.stderr is not None
    await bench.stderr.readline()  # the first server has had its round
    children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().split()
    assert len(children) == 3
    bench.send_signal(signal.SIGINT)
    await bench.communicate()
    assert bench.returncode == 130
    assert not any(map(_is_running, map(int, children)))


FAKE = """
from bench.kit import Check, Placement, Report, main
async def bench(options, placement):
    checks = [Check("figure", 1.0, {bound})]
    return Report("fake", Placement(0, 0), [("a", "b"), ("1", "22")], {{"x": 1}}, checks)
main(bench, "A bench.")
"""


@pytest.mark.parametrize(("bound", "status"), [(2.0, 0), (0.5, 1)])
async def test_a_report_is_a_table_and_a_line_of_json(tmp_path, bound, status) -> None:
    path = tmp_path / "figures.json"
    bench = await _start("-c", FAKE.format(bound=bound), "--json", str(path), "--seed", "7")
    out, _ = await bench.communicate()
    assert bench.returncode == status
    *table, line = out.decode().splitlines()
    assert table[:2] == ["a  b", "1  22"]
    found = msgspec.json.decode(line)
    assert msgspec.json.decode(path.read_bytes()) == found
    assert (found["bench"], found["seed"], found["figures"]) == ("fake", 7, {"x": 1})
    assert found["checks"][0]["is_met"] is (status == 0)
    assert {"cpu", "commit", "packages", "placement", "load_average"} <= found["machine"].keys()


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stdout=pipe, stderr=pipe
    )


def _is_running(process_id: int) -> bool:
    return Path(f"/proc/{process_id}").exists()
