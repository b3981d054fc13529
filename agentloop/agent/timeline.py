"""The breakdown as the client sees it: the server's measurements, and the network between. Pure.

Where a server measures, *network* is zero and hides in its wait for the client. The client knows
how long it waited for each stretch of work; what the server did not spend of that is network:

    client     ├──────────── wait ─────────────┤── tools ──┤
    server        ├── api + inference + … ──┤── client (as the server sees it) ──┤
    network    ├─┤                          ├──┤
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agentloop.breakdown import HOSTED_TOOLS, Phases, Timeline, TurnBreakdown

if TYPE_CHECKING:
    from agentloop.agent.api import Stretch


def with_network(timeline: Timeline, stretches: Sequence[Stretch]) -> Timeline:
    """The timeline with *network* told apart from *client*, on the last turn of each stretch.

    Unchanged where the client did not see the same turns as the server.
    """
    if sum(stretch.turns for stretch in stretches) != len(timeline.turns):
        return timeline
    return replace(timeline, turns=list(_divided(timeline.turns, stretches)))


def _divided(
    turns: Sequence[TurnBreakdown], stretches: Sequence[Stretch]
) -> Iterator[TurnBreakdown]:
    left = iter(turns)
    for stretch in stretches:
        *before, last = islice(left, stretch.turns)
        server_ms = sum(_wall_ms(turn) for turn in (*before, last))
        network_ms = max(0.0, stretch.wait_s * 1e3 - server_ms)
        waited_ms = max(0.0, last.phases.client_ms - _hosted_ms(last))  # none after the last turn
        yield from before
        yield replace(
            last,
            phases=replace(
                last.phases,
                network_ms=network_ms,
                client_ms=last.phases.client_ms - min(network_ms, waited_ms),
            ),
        )


def _hosted_ms(turn: TurnBreakdown) -> float:
    return sum(span.duration_us for span in turn.stages if span.name == HOSTED_TOOLS) / 1e3


def _wall_ms(turn: TurnBreakdown) -> float:
    return turn.phases.inference_ms + turn.phases.api_ms + _hosted_ms(turn)


def total(turns: Iterable[TurnBreakdown]) -> TurnBreakdown:
    """All turns as one, without stages; its number is how many they were."""
    summed = TurnBreakdown(turn=0, phases=Phases(), stages=[])
    for turn in turns:
        summed.turn += 1
        summed.bytes_up += turn.bytes_up
        summed.bytes_down += turn.bytes_down
        for name in Phases.__struct_fields__:
            value = getattr(summed.phases, name) + getattr(turn.phases, name)
            setattr(summed.phases, name, value)
    return summed
