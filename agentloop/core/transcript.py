"""The transcript: records folded into numbered events.

Live and replay run the same fold, so an attached client reads again exactly what was said. Delta
records keep ids and step lengths only; their events come from the parser, fed from the turn's
start.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator

from agentloop.core.calls import Call
from agentloop.core.records import (
    AnyRecord,
    Appended,
    Config,
    Created,
    Ended,
    Hosted,
    KeptAlive,
    Sampled,
    Stopped,
    TurnEnded,
    TurnStarted,
)
from agentloop.core.snapshot import NO_USAGE, add_usage, snapshot, usage
from agentloop.core.writers import Writer, is_cut_call, writer_for
from agentloop.engine.api import TokenIds
from agentloop.tokens.parse import Closed, Cut, Delta, Opened, Parsed, Parser, reasoning_count
from agentloop.wire import codec, events
from agentloop.wire.items import AnyItem

PendingCalls = Callable[[], list[Call]]
_STOPPED_STATE = {"suspended": "suspended", "idled": "idle", "continued": "sampling"}
_TERMINALS: dict[str, type[events.Terminal]] = {
    "completed": events.ResponseCompleted,
    "incomplete": events.ResponseIncomplete,
    "failed": events.ResponseFailed,
    "cancelled": events.ResponseIncomplete,
}


class Transcript:
    """The fold over one Response's records.

    Attributes:
        next_seq: the number of the next event.
        items: the output items so far, by output index.
        turn_ids: the ids sampled in the current turn.
        turn_item_start: the output index at which the current turn began.
        closed_calls: calls that were closed; their reader empties the list.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.next_seq = 0
        self.items: list[AnyItem] = []
        self.turn_ids: TokenIds[int] = array("I")
        self.turn_item_start = 0
        self.closed_calls: list[Call] = []
        self.usage_total = NO_USAGE
        self._usage_unreported = NO_USAGE
        self._reported_count = 0
        self._prompt_tokens: int | None = None
        self._parser = Parser()
        self._writer: Writer | None = None

    @property
    def last_seq(self) -> int:
        """The number of the last event; there is always one, the creation's."""
        return self.next_seq - 1

    @property
    def ends_in_cut_call(self) -> bool:
        """Whether the current turn's last item is a call that was cut before it was whole."""
        return len(self.items) > self.turn_item_start and is_cut_call(self.items[-1])

    def feed(self, record: AnyRecord, pending: PendingCalls) -> list[bytes]:
        """The record's events, numbered and encoded; `pending` tells the calls open after it."""
        seq, frames = self.next_seq, []
        for event in self._events(record, pending):
            event.sequence_number = seq
            seq += 1
            frames.append(codec.encode(event))
        self.next_seq = seq
        return frames

    def _events(self, record: AnyRecord, pending: PendingCalls) -> Iterable[events.Numbered]:
        match record:
            case Sampled():
                return self._sampled(record)
            case TurnStarted():
                return self._turn_started(record)
            case TurnEnded():
                return self._turn_ended(record.cached_tokens)
            case Stopped():
                return self._stopped(record, pending)
            case Appended():
                accepted = events.InjectCreated if record.is_inject else events.AppendAccepted
                ids = [call.call_id for call in pending()]
                return [accepted(0, self.config.id, record.event_id, ids)]
            case Hosted():
                return self._hosted(record)
            case Created():
                begun = snapshot(self.config, "in_progress")
                return [events.ResponseCreated(0, begun), events.ResponseInProgress(0, begun)]
            case KeptAlive():
                return [events.ResponseInProgress(0, snapshot(self.config, "in_progress"))]
            case Ended():
                return self._ended(record)
            case _:
                return []

    # -- one turn ------------------------------------------------------------------------------

    def _turn_started(self, record: TurnStarted) -> list[events.Numbered]:
        if record.attempt == 0:  # a retry goes on within the open item
            self._prompt_tokens = record.prompt_tokens
            self._parser = Parser()
            self.turn_ids = array("I")
            self.turn_item_start = len(self.items)
        return []

    def _sampled(self, record: Sampled) -> Iterator[events.Numbered]:
        """The hot path: nearly every step is one id of ordinary text."""
        ids, begin = record.ids, 0
        self.turn_ids.extend(ids)
        text_of, split = self._parser.text_of, self._parser.split
        for size in record.sizes:
            step = ids[begin : begin + size]
            begin += size
            text = text_of(step)
            if text is None:
                for parsed in split(step):
                    yield from self._said(parsed)
            elif text and self._writer is not None:
                yield from self._writer.delta(text)

    def _said(self, parsed: Parsed) -> Iterable[events.Numbered]:
        if isinstance(parsed, Delta) and self._writer is not None:
            return self._writer.delta(parsed.text)
        return self._boundary(parsed)

    def _boundary(self, parsed: Parsed) -> list[events.Numbered]:
        match parsed:
            case Opened(kind=kind, name=name, phase=phase):
                self._writer = writer_for(self.config, len(self.items), kind, name, phase)
                return self._writer.added()
            case Closed(text=text):
                return self._close_item(text, "completed")
            case Cut(text=text):
                return self._close_item(text, "incomplete")
            case _:
                return []

    def _close_item(self, text: str, status: str) -> list[events.Numbered]:
        writer, self._writer = self._writer, None
        assert writer is not None, "the parser closes what it opened"
        item = writer.item(text, status)
        self.items.append(item)
        if writer.call_id and status == "incomplete":
            return []  # clients run a call that is done; a cut one shows in the terminal only
        if writer.call_id:
            self.closed_calls.append(self._call_of(writer, text))
        return [*writer.done(text), events.OutputItemDone(0, writer.index, item)]

    def _call_of(self, writer: Writer, text: str) -> Call:
        is_hosted = writer.name in self.config.hosted or writer.kind == "hosted_call"
        return Call(writer.call_id, writer.name, text, is_hosted, writer.kind)

    def _turn_ended(self, cached_tokens: int) -> list[events.Numbered]:
        made = [event for parsed in self._parser.finish() for event in self._said(parsed)]
        if self._prompt_tokens is not None:
            reasoning = reasoning_count(self.turn_ids)
            cached_tokens = min(cached_tokens, self._prompt_tokens)  # a retry's prompt is longer
            turn = usage(self._prompt_tokens, cached_tokens, len(self.turn_ids), reasoning)
            self._usage_unreported = add_usage(self._usage_unreported, turn)
            self.usage_total = add_usage(self.usage_total, turn)
            self._prompt_tokens = None
        return made

    # -- between turns -------------------------------------------------------------------------

    def _hosted(self, record: Hosted) -> list[events.Numbered]:
        item, index = record.output.item, len(self.items)
        if item is None:
            return []
        self.items.append(item)
        return [events.OutputItemAdded(0, index, item), events.OutputItemDone(0, index, item)]

    def _stopped(self, record: Stopped, pending: PendingCalls) -> list[events.Numbered]:
        if not self.config.says_done:
            return []
        paused = events.PausedResponse(
            id=self.config.id,
            state=_STOPPED_STATE[record.kind],
            output=self.items[self._reported_count :],
            usage=self._usage_unreported,
            usage_total=self.usage_total,
            pending_tool_calls=[events.PendingCall(call.call_id, call.name) for call in pending()],
        )
        self._reported_count = len(self.items)
        self._usage_unreported = NO_USAGE
        return [events.ResponseDone(0, paused)]

    def _ended(self, record: Ended) -> list[events.Numbered]:
        made = self._turn_ended(0) if self._prompt_tokens is not None else []
        ended = snapshot(
            self.config,
            record.kind,
            ended=record,
            output=self.items[self._reported_count :],
            usage=self._usage_unreported,
            usage_total=self.usage_total,
        )
        return [*made, _TERMINALS[record.kind](0, ended)]
