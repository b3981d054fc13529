"""What a Response remembers: its records, folded.

Live work and replay run the same fold, so a Response rebuilt from its records says and remembers
exactly what the first one did. Nothing is changed anywhere else.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from agentloop.core.calls import Calls
from agentloop.core.context import EMPTY, Context, Entry, count_turns
from agentloop.core.keys import Keys
from agentloop.core.records import (
    AnyRecord,
    Appended,
    AttachmentChanged,
    Config,
    Created,
    Ended,
    Expired,
    Hosted,
    TurnEnded,
    TurnStarted,
)
from agentloop.core.states import State, next_state
from agentloop.core.transcript import Transcript
from agentloop.core.writers import is_cut_call
from agentloop.engine.api import TokenIds
from agentloop.tokens.frame import TURN_START
from agentloop.tokens.render import as_history


class Fold:
    """The state that records make.

    Attributes:
        state: where the Response is; None before it was created.
        head: the tokens before the context: instructions and tools.
        context: items and tokens up to the last finished turn or consumed input.
        settled_context: the context before the current turn, where all calls have results.
        calls: every call ever announced, with its output.
        waiting: accepted messages that wait for the turn's end.
        keys: the acceptance that each `event_id` was answered with.
        is_turn_open: a turn was started and has not ended.
        ended: the terminal, once there is one.
        was_appended_in_turn: an append came while the turn ran.
    """

    def __init__(self, config: Config, parent: Context = EMPTY) -> None:
        self.config = config
        self.parent = parent
        self.state: State | None = None
        self.head: TokenIds[int] = array("I")
        self.context = parent
        self.settled_context = parent
        self.calls = Calls()
        self.waiting: list[Entry] = []
        self.keys: Keys[bytes] = Keys()
        self.attach_epoch = 0
        self.was_appended_in_turn = False
        self.is_turn_open = False
        self.ended: Ended | None = None
        self.transcript = Transcript(config)

    def apply(self, record: AnyRecord) -> list[bytes]:
        """Fold one record in; returns its events, numbered and encoded."""
        self.state = State.CREATED if self.state is None else next_state(self.state, record.kind)
        self._remember(record)
        frames = self.transcript.feed(record, self.calls.pending)
        self._announce_closed_calls()
        if isinstance(record, TurnEnded):
            self._extend_by_turn()
        if isinstance(record, Appended):
            self.keys.keep(record.event_id, record.fingerprint, frames[0])
        return frames

    def repeat(self, record: AnyRecord) -> list[bytes]:
        """Fold in a record that was folded before; asserts that it makes the same events."""
        assert record.first_seq == self.transcript.next_seq, "a record's first number has moved"
        frames = self.apply(record)
        assert record.event_count == len(frames), "a record makes other events"
        return frames

    def _remember(self, record: AnyRecord) -> None:
        match record:
            case Appended():
                self._resolve(record.outputs)
                self.waiting += record.messages
                if record.outputs or record.messages:
                    self.was_appended_in_turn = self.state is State.SAMPLING
            case Expired():
                self._resolve(record.outputs)
            case Hosted():
                self._resolve({record.call_id: record.output})
            case TurnStarted():
                self.is_turn_open = True
                if record.attempt == 0:
                    self._consume_input()
            case TurnEnded():
                self.is_turn_open = False
            case Ended():
                self.ended = record
            case Created():
                self.attach_epoch = record.attach_epoch
                self.head = record.head
                self.context = extended(self.context, record.entries)
            case AttachmentChanged():
                self.attach_epoch = record.attach_epoch
            case _:
                pass  # the transcript alone remembers it

    def _resolve(self, outputs: dict[str, Entry]) -> None:
        for call_id, output in outputs.items():
            self.calls.resolve(call_id, output)

    def _consume_input(self) -> None:
        """Outputs enter the context in call order, messages after them."""
        entries = [*self.calls.take_outputs(), *self.waiting]
        self.waiting = []
        self.was_appended_in_turn = False
        self.context = extended(self.context, entries)
        self.settled_context = self.context

    def _announce_closed_calls(self) -> None:
        for call in self.transcript.closed_calls:
            call.attach_epoch = self.attach_epoch
            self.calls.announce(call)
        self.transcript.closed_calls.clear()

    def _extend_by_turn(self) -> None:
        """The turn enters the context as it was sampled; a cut call leaves neither item nor ids."""
        items = self.transcript.items[self.transcript.turn_item_start :]
        whole = [item for item in items if not is_cut_call(item)]
        said = as_history(self.transcript.turn_ids)
        ids = array("I", TURN_START if said else ())
        ids.extend(said)
        self.context = self.context.extend(whole, ids, turns=1)


def replay(config: Config, records: Iterable[AnyRecord], parent: Context = EMPTY) -> list[bytes]:
    """All events that these records made, made again."""
    fold = Fold(config, parent)
    return [frame for record in records for frame in fold.repeat(record)]


def extended(context: Context, entries: Sequence[Entry]) -> Context:
    """The context with these entries after it."""
    if not entries:
        return context
    items = [entry.item for entry in entries if entry.item is not None]
    return context.extend(items, _joined(entries), count_turns(items))


def _joined(entries: Sequence[Entry]) -> TokenIds[int]:
    """The ids of all entries. Where one has them all, they are shared: nobody changes them."""
    filled = [entry.ids for entry in entries if entry.ids]
    if len(filled) == 1:
        return filled[0]
    ids = array("I")
    for each in filled:
        ids.extend(each)
    return ids
