"""What an agent reports: while it works, to an observer; at its end, as an outcome."""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from agentloop.wire.events import Usage

TextKind = Literal["reasoning", "text"]


class CallReport(Struct):
    """One tool call, as the client saw it.

    Attributes:
        turn: the turn that made it, counted from 1.
        is_local: the client ran it; else the server did.
        started_s, ended_s: the client's clock. A search's end is not on the wire: None.
        output: what the model is told; None while it runs, and for a search.
    """

    call_id: str
    name: str
    arguments: str
    turn: int
    is_local: bool
    started_s: float
    ended_s: float | None = None
    output: str | None = None

    @property
    def duration_ms(self) -> float | None:
        return None if self.ended_s is None else (self.ended_s - self.started_s) * 1e3


class Stretch(Struct):
    """From the frame that made the loop go to the frame with which it stopped.

    Attributes:
        turns: how many turns the server ran in it.
        wait_s: how long that was, where the client stands.
    """

    turns: int
    wait_s: float


class Outcome(Struct):
    """How a session went.

    Attributes:
        status: the wire's status of the Response; `in_progress` until it has ended.
        reason: why it did not complete; empty where it did.
        turns: model turns. A turn after a search alone is told apart by its first item.
        text: the last message of the model.
        item_count: items of the history: input, output and what the tools said.
    """

    response_id: str | None
    status: str
    reason: str
    turns: int
    calls: list[CallReport]
    stretches: list[Stretch]
    text: str
    usage: Usage | None
    item_count: int


class Observer(Protocol):
    """Watches a session live. Nothing here may wait."""

    def start_turn(self, turn: int) -> None:
        """The model begins to speak; turns count from 1."""

    def show_text(self, kind: TextKind, delta: str) -> None:
        """More reasoning or text."""

    def start_call(self, call: CallReport) -> None:
        """A call is whole, and its tool runs from now on."""

    def end_call(self, call: CallReport) -> None:
        """The tool has answered."""

    def end(self) -> None:
        """Nothing more comes, for whatever reason."""


class Silent:
    """An observer that shows nothing."""

    def start_turn(self, turn: int) -> None: ...

    def show_text(self, kind: TextKind, delta: str) -> None: ...

    def start_call(self, call: CallReport) -> None: ...

    def end_call(self, call: CallReport) -> None: ...

    def end(self) -> None: ...
