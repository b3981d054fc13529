from __future__ import annotations

from agentloop.agent.api import Stretch
from agentloop.agent.timeline import total, with_network
from agentloop.breakdown import Phases, Span, Timeline, TurnBreakdown


def turn(number: int, client_ms: float, hosted_ms: float = 0.0) -> TurnBreakdown:
    """30 ms of inference, 5 ms of API, and this much for the client."""
    stages = [Span("hosted_tools", 0.0, hosted_ms * 1e3)] if hosted_ms else []
    phases = Phases(inference_ms=30.0, api_ms=5.0, client_ms=client_ms + hosted_ms)
    return TurnBreakdown(number, phases, stages, bytes_up=10, bytes_down=100)


def timeline(*turns: TurnBreakdown) -> Timeline:
    return Timeline("resp_1", "ws-append", list(turns))


def phases(of: Timeline) -> list[tuple[float, float]]:
    """Network and client of each turn."""
    return [(round(t.phases.network_ms, 6), round(t.phases.client_ms, 6)) for t in of.turns]


def test_network_is_what_the_client_waited_longer_than_the_server_worked() -> None:
    server = timeline(turn(0, client_ms=50.0), turn(1, client_ms=0.0))
    seen = with_network(server, [Stretch(1, 0.043), Stretch(1, 0.037)])
    assert phases(seen) == [(8.0, 42.0), (2.0, 0.0)]


def test_the_wall_time_of_a_turn_with_a_wait_after_it_stays_what_it_was() -> None:
    server = timeline(turn(0, client_ms=50.0), turn(1, client_ms=0.0))
    seen = with_network(server, [Stretch(1, 0.043), Stretch(1, 0.035)])
    assert sum(phases(seen)[0]) == sum(phases(server)[0]) == 50.0


def test_a_server_that_runs_the_tools_has_one_stretch() -> None:
    server = timeline(turn(0, 0.0, hosted_ms=20.0), turn(1, 0.0))
    seen = with_network(server, [Stretch(2, 0.100)])
    assert phases(seen) == [(0.0, 20.0), (10.0, 0.0)]


def test_clocks_that_disagree_make_no_negative_network() -> None:
    seen = with_network(timeline(turn(0, 0.0)), [Stretch(1, 0.034)])
    assert phases(seen) == [(0.0, 0.0)]


def test_turns_that_the_client_saw_otherwise_are_left_alone() -> None:
    server = timeline(turn(0, 50.0), turn(1, 0.0))
    assert with_network(server, [Stretch(1, 9.0)]) is server


def test_a_total_sums_phases_and_bytes_and_counts_turns() -> None:
    summed = total([turn(0, 50.0), turn(1, 1.0)])
    assert summed == TurnBreakdown(2, Phases(60.0, 10.0, 0.0, 51.0), [], 20, 200)
