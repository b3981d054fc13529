"""What `agentloop run` says at its end: one JSON object, or a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from rich.measure import Measurement
from rich.table import Table

from agentloop.agent.api import CallReport, Outcome
from agentloop.agent.timeline import total
from agentloop.breakdown import Timeline, TurnBreakdown
from agentloop.cli.display import one_line
from agentloop.cli.job import CheckReport
from agentloop.wire.events import Usage

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = ("turn", "inference ms", "API ms", "network ms", "client ms", "up B", "down B")
_WIDTH_UNBOUNDED = 10_000


class CallShown(Struct):
    """One tool call; `started_ms` counts from the first call of the session."""

    call_id: str
    name: str
    arguments: str
    turn: int  # from 0, as in the timeline
    runs_on: Literal["client", "server"]
    started_ms: float
    duration_ms: float | None
    output: str | None


class BreakdownShown(Struct):
    """Where each turn's time went; `total.turn` is the number of turns."""

    inference: str
    turns: list[TurnBreakdown]
    total: TurnBreakdown


class RunReport(Struct, kw_only=True):
    """The whole run. `problems` is empty where all is well."""

    status: str
    design: str
    model: str
    url: str | None
    response_id: str | None
    turns: int
    calls: list[CallShown]
    text: str
    usage: Usage | None
    history_items: int
    breakdown: BreakdownShown | None
    check: CheckReport | None
    workspace: str | None
    record: str | None
    problems: list[str]


def calls_shown(outcome: Outcome) -> list[CallShown]:
    """The calls of a session, in the order in which they were made."""
    first_s = outcome.calls[0].started_s if outcome.calls else 0.0
    return [_call_shown(call, first_s) for call in outcome.calls]


def _call_shown(call: CallReport, first_s: float) -> CallShown:
    return CallShown(
        call_id=call.call_id,
        name=call.name,
        arguments=call.arguments,
        turn=call.turn - 1,  # as the timeline counts
        runs_on="client" if call.is_local else "server",
        started_ms=(call.started_s - first_s) * 1e3,
        duration_ms=call.duration_ms,
        output=call.output,
    )


def breakdown_shown(timeline: Timeline, inference: str) -> BreakdownShown:
    """A timeline and its total; `inference` says where the inference time comes from."""
    return BreakdownShown(inference, timeline.turns, total(timeline.turns))


def problems_of(
    outcome: Outcome, turns: int, turns_expected: int | None, check: CheckReport | None
) -> list[str]:
    """Why the run has failed, a line each."""
    problems = []
    if outcome.status != "completed":
        problems.append(f"the session ended as {outcome.status}: {outcome.reason}")
    if turns_expected is not None and turns != turns_expected:
        problems.append(f"the recording has {turns_expected} turns, and this session had {turns}")
    if check is not None and not check.has_passed:
        lines = check.output.strip().splitlines()
        problems.append(f"the check `{check.command}` failed: {lines[-1] if lines else 'silently'}")
    return problems


def show(console: Console, report: RunReport) -> None:
    """The report for people."""
    console.print()
    if report.breakdown is not None:
        show_breakdown(console, report.breakdown)
    usage = report.usage
    tokens = f", {usage.input_tokens} tokens in, {usage.output_tokens} out" if usage else ""
    counts = f"{report.turns} turns, {len(report.calls)} calls{tokens}"
    lines = [f"{report.status}: {counts} ({report.design})"]
    if report.check is not None:
        verdict = "passed" if report.check.has_passed else "failed"
        lines.append(f"check {verdict}: {report.check.command}")
    if report.workspace is not None:
        lines.append(f"workspace: {report.workspace}")
    if report.record is not None:
        lines.append(f"record: {report.record}")
    for line in lines:
        console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)


def show_breakdown(console: Console, breakdown: BreakdownShown) -> None:
    """A table; where the console is too narrow for one, a line for each number."""
    table = _table(breakdown)
    unbounded = console.options.update(width=_WIDTH_UNBOUNDED)
    if Measurement.get(console, unbounded, table).minimum <= console.width:
        console.print(table)
        return
    for row in _rows(breakdown):
        for name, cell in zip(_COLUMNS, row, strict=True):
            console.print(f"{name} {cell}", highlight=False, soft_wrap=True)


def _table(breakdown: BreakdownShown) -> Table:
    table = Table(caption=f"inference: {breakdown.inference}", caption_justify="left")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    *turns, total = _rows(breakdown)
    for turn in turns:
        table.add_row(*turn)
    table.add_section()
    table.add_row(*total, style="bold")
    return table


def _rows(breakdown: BreakdownShown) -> list[list[str]]:
    turns = [[str(turn.turn + 1), *_cells(turn)] for turn in breakdown.turns]
    return [*turns, ["total", *_cells(breakdown.total)]]


def _cells(turn: TurnBreakdown) -> list[str]:
    phases = turn.phases
    times = (phases.inference_ms, phases.api_ms, phases.network_ms, phases.client_ms)
    return [*(f"{time_ms:.1f}" for time_ms in times), str(turn.bytes_up), str(turn.bytes_down)]
