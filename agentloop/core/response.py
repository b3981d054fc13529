"""The Response: a state machine, commands in, records out.

A command decides and commits one record; the fold (`agentloop.core.fold`) turns it into state and
events. Nothing here waits, reads a clock or does I/O: the shell collects what was committed with
`take` and carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from agentloop.core.calls import Call
from agentloop.core.context import EMPTY, Context, Entry
from agentloop.core.fold import Fold, extended
from agentloop.core.records import (
    AnyRecord,
    Appended,
    AttachmentChanged,
    Config,
    Created,
    Ended,
    Expired,
    Hosted,
    KeptAlive,
    Kind,
    Sampled,
    Stopped,
    TurnEnded,
    TurnStarted,
    Unheld,
)
from agentloop.core.states import State
from agentloop.engine.api import TokenIds
from agentloop.errors import ClientFault, LimitExceeded, StateConflict
from agentloop.ids import derive
from agentloop.tokens.frame import TURN_START
from agentloop.wire.events import PendingCall
from agentloop.wire.items import CustomToolCallOutput, FunctionCallOutput, OutputItem

CLOSES_MAX = 16
MESSAGES_MAX = 1_024


class Commit(Struct):
    """A committed record and the events it makes."""

    record: AnyRecord
    frames: list[bytes]


class Response(Fold):
    """One agent run on the wire.

    Attributes:
        must_yield: a create waits on the lane, so the loop stops at the turn's end.
    """

    def __init__(self, config: Config, parent: Context = EMPTY) -> None:
        super().__init__(config, parent)
        self.must_yield = False
        self._closing: list[Callable[[], None]] = []
        self._refused_closes: list[Callable[[], None]] = []
        self._commits: list[Commit] = []

    def __repr__(self) -> str:
        state = self.state.value if self.state else "new"
        pending = len(self.calls.pending())
        return f"<Response {self.id} {state}, turn {self.turn}, {pending} pending>"

    @property
    def id(self) -> str:
        return self.config.id

    @property
    def turn(self) -> int:
        """The number of the next turn to start, or of the one that runs."""
        return self.context.turn_count

    @property
    def is_open(self) -> bool:
        """Whether the terminal is still to come."""
        return self.state is None or self.state.is_open

    def _commit(self, record: AnyRecord) -> None:
        record.first_seq = self.transcript.next_seq
        frames = self.apply(record)
        record.event_count = len(frames)
        self._commits.append(Commit(record, frames))

    def take(self) -> list[Commit]:
        """What was committed since the last call."""
        taken, self._commits = self._commits, []
        return taken

    # -- the loop's commands -------------------------------------------------------------------

    def create(self, head: TokenIds[int], entries: list[Entry]) -> None:
        """The first command: the Response exists, with this admitted input."""
        self._commit(
            Created(kind="created", config=self.config, head=head, entries=entries, attach_epoch=1)
        )

    def start_turn(self, attempt: int) -> None:
        """The engine is about to be called; attempts above 0 continue the recorded ids."""
        entries = [] if attempt else self.waiting
        waiting = sum(len(entry.ids) for entry in entries)
        outputs = sum(len(call.output.ids) for call in self.calls.of_turn if call.output)
        before = len(self.head) + self.context.token_count
        prompt_tokens = before + waiting + outputs + len(TURN_START)
        self._commit(
            TurnStarted(
                kind="turn_started", turn=self.turn, attempt=attempt, prompt_tokens=prompt_tokens
            )
        )

    def sample(self, ids: TokenIds[int], sizes: bytes) -> None:
        """Engine steps came: their ids, and how many each step made. Whole calls are announced."""
        self._commit(Sampled(kind="sampled", ids=ids, sizes=sizes))

    def end_turn(self, reason: str, cached_tokens: int) -> None:
        """The engine finished with `stop` or `length`."""
        self._commit(TurnEnded(kind="turn_ended", reason=reason, cached_tokens=cached_tokens))
        if reason == "length":
            self.end("incomplete", reason="max_output_tokens")
        elif self.transcript.ends_in_cut_call:
            self.end("failed", error=("server_error", "the engine stopped within a call"))

    def answer_hosted(self, call: Call, output: Entry) -> None:
        """A hosted call's output is in; where it is an item, it gets its id here."""
        if isinstance(output.item, FunctionCallOutput | CustomToolCallOutput):
            output.item.id = derive("fco", self.id, len(self.transcript.items))
            output.item.status = "completed"
        self._commit(Hosted(kind="hosted", call_id=call.call_id, output=output))

    def stop(self) -> None:
        """After a turn and its hosted calls: suspend, complete, go straight on, or rest idle."""
        pending, options = self.calls.pending(), self.config.options
        has_more = bool(self.waiting or self.calls.of_turn)
        if pending or self.waiting or self.was_appended_in_turn:
            self._refuse_closes()
        if pending and not self.config.parks:
            self.end("completed")
        elif pending:
            self._stop("suspended")
        elif has_more and not self.must_yield:
            if self.was_appended_in_turn:  # hosted calls alone say nothing: clients would stop
                self._stop("continued")
        elif not has_more and (self._closing or options.final == "complete"):
            self.end("completed")
        else:
            self._stop("idled")

    def _stop(self, kind: Kind) -> None:
        self._commit(Stopped(kind=kind))

    def keep_alive(self) -> None:
        """Say that the Response is still at work."""
        self._commit(KeptAlive(kind="kept_alive"))

    def end(
        self, kind: Kind, *, reason: str | None = None, error: tuple[str, str] | None = None
    ) -> None:
        """The one terminal. `error` is (code, message). A close that waited has what it wanted."""
        self._closing = []
        code, message = error or (None, None)
        self._commit(
            Ended(
                kind=kind,
                reason=reason,
                error_code=code,
                error_message=message,
                unanswered=[call.call_id for call in self.calls.unanswered()],
                unconsumed=[entry.item for entry in self.waiting if entry.item is not None],
            )
        )

    # -- the client's commands -----------------------------------------------------------------

    def append(
        self,
        entries: Sequence[tuple[int, Entry]],
        event_id: str | None = None,
        fingerprint: bytes = b"",
        *,
        is_inject: bool = False,
    ) -> bytes:
        """Accept tool outputs and messages, all or none; the last output resumes the loop.

        Args:
            entries: (position in the request's input, admitted item).

        Returns: the acceptance, the one event that this makes.

        Raises:
            ClientFault: `response_already_completed`, `call_not_found`.
            StateConflict: `call_already_resolved`, `not_appendable`.
            LimitExceeded: `too_many_queued`.
        """
        self._check_open()
        if not self.config.parks:
            raise StateConflict(
                "this Response hands calls back; create with previous_response_id",
                code="not_appendable",
            )
        outputs = self.calls.select((i, e) for i, e in entries if isinstance(e.item, OutputItem))
        messages = [e for _, e in entries if not isinstance(e.item, OutputItem)]
        if len(self.waiting) + len(messages) > MESSAGES_MAX:
            raise LimitExceeded(
                f"at most {MESSAGES_MAX} messages may wait; send them after the turn's end",
                code="too_many_queued",
            )
        self._commit(
            Appended(
                kind="resumed" if self._resumes(outputs, messages) else "appended",
                outputs=outputs,
                messages=messages,
                event_id=event_id,
                fingerprint=fingerprint,
                is_inject=is_inject,
            )
        )
        return self._commits[-1].frames[0]

    def go_on(self) -> None:
        """What waits at an idle Response gets its turn, unless a create is to take over."""
        if self.state is not State.IDLE or self.must_yield:
            return
        if self.waiting or self.calls.of_turn:
            self._commit(Unheld(kind="resumed"))

    def _resumes(self, outputs: dict[str, Entry], messages: list[Entry]) -> bool:
        if self.state is State.IDLE:
            return bool(messages)
        pending = self.calls.pending()
        return self.state is State.SUSPENDED and all(call.call_id in outputs for call in pending)

    def cancel(self) -> None:
        """End at once, as the client asked.

        Raises:
            ClientFault: `response_already_completed`.
        """
        self._check_open()
        self.end("cancelled")

    def close(self, refuse: Callable[[], None]) -> None:
        """End well: at once if idle, at the turn's end while at work.

        Args:
            refuse: tells who asked that the turn's end refused; handed back, never called here.

        Raises:
            ClientFault: `response_already_completed`.
            StateConflict: `calls_pending`. While at work the refusal comes at the turn's end,
                through `take_refused_closes`.
            LimitExceeded: as many closes wait as may.
        """
        self._check_open()
        if self.state is State.IDLE:
            self.end("completed")
        elif self.state is State.SUSPENDED:
            raise calls_pending()
        elif len(self._closing) >= CLOSES_MAX:
            raise LimitExceeded(f"{CLOSES_MAX} closes wait for the turn's end already")
        else:
            self._closing.append(refuse)

    def _refuse_closes(self) -> None:
        self._refused_closes += self._closing
        self._closing = []

    def take_refused_closes(self) -> list[Callable[[], None]]:
        """For each close that met pending calls or a waiting message, how to say so."""
        taken, self._refused_closes = self._refused_closes, []
        return taken

    def _check_open(self) -> None:
        if not self.is_open:
            raise ClientFault(
                f"Response {self.id} has ended; create a new one",
                code="response_already_completed",
                param="response_id",
            )

    # -- the link's and the clock's commands ---------------------------------------------------

    def supersede(self) -> None:
        """A new create takes the lane. Never while sampling: the create waits for the turn."""
        self.end("completed" if self.state is State.IDLE else "incomplete", reason="superseded")

    def attach(self) -> None:
        """A link took the Response over."""
        self._commit(AttachmentChanged(kind="attached", attach_epoch=self.attach_epoch + 1))

    def lose_link(self) -> None:
        """The link is gone: wait for another if detachable, else end."""
        if self.config.is_detachable:
            self._commit(AttachmentChanged(kind="detached", attach_epoch=self.attach_epoch))
        else:
            self.end_detached()

    def end_detached(self) -> None:
        """Nobody hears the Response any more, and nobody may come back."""
        self.end("completed" if self.state is State.IDLE else "incomplete", reason="detached")

    def expire_detached(self) -> None:
        """Nobody came back within the TTL."""
        self.end("incomplete", reason="detached")

    def expire_calls(self, outputs: dict[str, Entry]) -> None:
        """The tool timeout: end, or go on with these results for the pending calls."""
        assert self.state is State.SUSPENDED, "only a suspension times out"
        if self.config.options.on_tool_timeout == "incomplete":
            self.end("incomplete", reason="tool_timeout")
        else:
            self._commit(Expired(kind="expired", outputs=outputs))

    # -- what it tells -------------------------------------------------------------------------

    def repeat_of(self, event_id: str | None, fingerprint: bytes) -> bytes | None:
        """The acceptance that this key was answered with before; asked first, always.

        Raises:
            KeyConflict: the key came with another payload.
        """
        return self.keys.find(event_id, fingerprint)

    def prompt_from(self, start: int) -> TokenIds[int]:
        """The next turn's prompt from the token at `start` on; costs only that part."""
        behind_head = start - len(self.head)
        if behind_head >= 0:
            ids = self.context.ids_from(behind_head)
        else:
            ids = self.head[start:] + self.context.ids_from(0)
        ids.extend(TURN_START)
        return ids

    def as_parent(self) -> Context:
        """The context that a new Response may go on from: up to the last turn whose calls all
        have real results.

        Raises:
            StateConflict: `response_not_finished`.
            ClientFault: `previous_response_not_found`, for one that failed or was cancelled.
        """
        if self.state in (State.CREATED, State.SAMPLING):
            raise StateConflict(
                f"Response {self.id} is still at work; wait for its turn's end",
                code="response_not_finished",
                param="previous_response_id",
            )
        if self.state in (State.FAILED, State.CANCELLED):
            raise parent_not_found(self.id)
        if self.is_turn_open or (self.config.parks and self.calls.unanswered()):
            return self.settled_context
        return extended(self.context, self.calls.outputs())

    def pending_calls(self) -> list[PendingCall]:
        """The pending calls as an attaching client is told of them; none after the terminal, which
        gave each the result `cancelled`."""
        if not self.is_open:
            return []
        return [
            PendingCall(
                call.call_id, call.name, call.arguments, call.attach_epoch < self.attach_epoch
            )
            for call in self.calls.pending()
        ]


def calls_pending() -> StateConflict:
    """The refusal of a close that meets pending calls or a waiting message."""
    return StateConflict(
        "calls are pending; answer or cancel them before closing", code="calls_pending"
    )


def parent_not_found(response_id: str) -> ClientFault:
    """The refusal that tells clients to send their whole history instead."""
    return ClientFault(
        f"previous response {response_id!r} not found; send the whole input instead",
        code="previous_response_not_found",
        param="previous_response_id",
    )
