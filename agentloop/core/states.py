"""What may follow what: the one transition table, and the diagram drawn from it.

Everything about legality lives here: an illegal record is a miss in `TRANSITIONS`. The table does
not know who asked for the record.
"""

from __future__ import annotations

from enum import Enum

from agentloop.core.records import Kind


class State(Enum):
    """A Response's state. *Suspended*: calls are pending. *Idle*: open, nothing is pending."""

    CREATED = "created"
    SAMPLING = "sampling"
    SUSPENDED = "suspended"
    IDLE = "idle"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether the terminal is still to come."""
        return self in OPEN


OPEN = frozenset({State.CREATED, State.SAMPLING, State.SUSPENDED, State.IDLE})

_ENDS: dict[Kind, State] = {
    "incomplete": State.INCOMPLETE,
    "cancelled": State.CANCELLED,
    "failed": State.FAILED,
}


def _row(state: State, moves: dict[Kind, State]) -> dict[Kind, State]:
    stays: dict[Kind, State] = {"attached": state, "detached": state, "appended": state}
    return {**stays, **_ENDS, **moves}


TRANSITIONS: dict[State, dict[Kind, State]] = {
    State.CREATED: _row(
        State.CREATED,
        {"turn_started": State.SAMPLING},
    ),
    State.SAMPLING: _row(
        State.SAMPLING,
        {
            "turn_started": State.SAMPLING,
            "sampled": State.SAMPLING,
            "turn_ended": State.SAMPLING,
            "hosted": State.SAMPLING,
            "kept_alive": State.SAMPLING,
            "continued": State.SAMPLING,
            "suspended": State.SUSPENDED,
            "idled": State.IDLE,
            "completed": State.COMPLETED,
        },
    ),
    State.SUSPENDED: _row(
        State.SUSPENDED,
        {"resumed": State.SAMPLING, "expired": State.SAMPLING},
    ),
    State.IDLE: _row(
        State.IDLE,
        {"resumed": State.SAMPLING, "completed": State.COMPLETED},
    ),
    State.COMPLETED: {},
    State.INCOMPLETE: {},
    State.FAILED: {},
    State.CANCELLED: {},
}


def next_state(state: State, kind: Kind) -> State:
    """The state after a record of this kind. A miss is a bug of ours, not of a client."""
    try:
        return TRANSITIONS[state][kind]
    except KeyError:
        raise AssertionError(f"no {kind} in state {state.value}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram, for `notes/`."""
    lines = ["stateDiagram-v2", "    [*] --> created: created"]
    for state, moves in TRANSITIONS.items():
        grouped: dict[State, list[str]] = {}
        for kind, target in moves.items():
            grouped.setdefault(target, []).append(kind)
        for target, kinds in grouped.items():
            lines.append(f"    {state.value} --> {target.value}: {', '.join(sorted(kinds))}")
        if not moves:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join(lines) + "\n"
