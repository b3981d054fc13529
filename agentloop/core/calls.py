"""The calls of one Response: announced once, answered once.

A call that was answered keeps its answer for the Response's life, so that a repeat is recognised
and another answer refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from agentloop.core.context import Entry
from agentloop.errors import StateConflict, UnknownCall
from agentloop.tokens.frame import CallKind
from agentloop.wire.items import CustomToolCallOutput, FunctionCallOutput, OutputItem


class Call(Struct):
    """One tool call.

    Attributes:
        attach_epoch: the attachment under which it was announced.
        is_hosted: the server runs it; a client's answer to it is refused as unknown.
        kind: what answers it; a hosted kind's result is no item.
        output: its accepted output; None while it is pending.
    """

    call_id: str
    name: str
    arguments: str
    is_hosted: bool
    kind: CallKind
    attach_epoch: int = 0
    output: Entry | None = None

    @property
    def has_output_item(self) -> bool:
        """Whether its output is an item of its own."""
        return self.kind != "hosted_call"


class Calls:
    """All calls by id, and those of the current turn in call order."""

    def __init__(self) -> None:
        self._by_id: dict[str, Call] = {}
        self.of_turn: list[Call] = []

    def announce(self, call: Call) -> None:
        """A whole call was sampled."""
        self._by_id[call.call_id] = call
        self.of_turn.append(call)

    def find(self, call_id: str) -> Call | None:
        """The announced call with this id."""
        return self._by_id.get(call_id)

    def pending(self) -> list[Call]:
        """Client calls without an output, in call order."""
        return [call for call in self.of_turn if call.output is None and not call.is_hosted]

    def hosted(self) -> list[Call]:
        """The turn's calls that the server runs, in call order."""
        return [call for call in self.of_turn if call.is_hosted]

    def unanswered(self) -> list[Call]:
        """All calls without an output, hosted ones too."""
        return [call for call in self.of_turn if call.output is None]

    def select(self, entries: Iterable[tuple[int, Entry]]) -> dict[str, Entry]:
        """The outputs that are new, by call id; identical repeats are left out.

        Args:
            entries: (position in the input, output).

        Raises:
            UnknownCall: an output names no announced client call.
            StateConflict: `call_already_resolved`, another output was accepted before.
        """
        chosen: dict[str, Entry] = {}
        for position, entry in entries:
            assert isinstance(entry.item, OutputItem)
            call_id = entry.item.call_id
            call = self._by_id.get(call_id)
            if call is None or call.is_hosted:
                raise unknown_call(call_id, position)
            accepted = call.output or chosen.get(call_id)
            if accepted is None:
                chosen[call_id] = entry
            elif not _is_same_output(accepted.item, entry.item):
                raise StateConflict(
                    f"call {call_id} already has a different output",
                    code="call_already_resolved",
                    param=f"input[{position}].call_id",
                )
        return chosen

    def resolve(self, call_id: str, output: Entry) -> None:
        """The one accepted output of a call."""
        call = self._by_id[call_id]
        assert call.output is None, "a call is answered once"
        call.output = output

    def outputs(self) -> list[Entry]:
        """The turn's outputs so far.

        In call order, after the results that are no items: the server has those first, and a
        history rendered from items alone puts them there.
        """
        calls = sorted(self.of_turn, key=lambda call: call.has_output_item)
        return [call.output for call in calls if call.output is not None]

    def take_outputs(self) -> list[Entry]:
        """The turn's outputs, all of them; the turn's calls are then done with."""
        assert not self.unanswered(), "a turn goes on when every call is answered"
        outputs, self.of_turn = self.outputs(), []
        return outputs


def unknown_call(call_id: str, position: int) -> UnknownCall:
    """The error for an output that belongs to no call of this Response."""
    return UnknownCall(
        f"no call {call_id!r} was announced by this Response; answer the calls that"
        " `pending_tool_calls` lists",
        param=f"input[{position}].call_id",
    )


def _is_same_output(one: object, other: object) -> bool:
    assert isinstance(one, FunctionCallOutput | CustomToolCallOutput)
    return isinstance(other, type(one)) and one.output == other.output
