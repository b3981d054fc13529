"""One life of a Response: each command is held against the model, each event against the watch.

A refused command must leave the whole state as it was, compared field by field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentloop.core.context import EMPTY, Context, Entry
from agentloop.core.fold import Fold
from agentloop.core.records import Appended, Config, Ended, Expired, Hosted, TurnStarted
from agentloop.errors import ClientFault, KeyConflict, StateConflict, UnknownCall
from agentloop.tokens.render import Said, SaidCall
from agentloop.tokens.vocabulary import CALL
from tests.core.core_kit import (
    HOSTED,
    RESPONSE_ID,
    SUFFIX,
    Driven,
    freeze,
    hosted_answer,
    message,
    nothing,
    output,
    sample,
    spell,
    types_of,
)
from tests.core.core_model import Given, Model, ModelTurn, Verdict
from tests.core.core_watch import Watch, flat_usage

FAULTS: dict[Verdict, tuple[type[ClientFault], str]] = {
    "key": (KeyConflict, "idempotency_conflict"),
    "ended": (ClientFault, "response_already_completed"),
    "hands_back": (StateConflict, "not_appendable"),
    "unknown": (UnknownCall, "call_not_found"),
    "resolved": (StateConflict, "call_already_resolved"),
    "pending": (StateConflict, "calls_pending"),
}


class Life:
    """A Response, driven as the server's loop and lanes drive it.

    Attributes:
        phase: where its loop is: `ready` for a turn, within a `turn`, or `after` its finish.
        given: what each key was used for.
    """

    def __init__(self, config: Config, texts: Sequence[str], parent: Context = EMPTY) -> None:
        self.driven = Driven(config, parent)
        self.config, self.response = config, self.driven.response
        self.model = Model(
            parks=config.parks, final=config.options.final, parent=spell(parent.ids_from(0))
        )
        self.watch = Watch(RESPONSE_ID)
        self.heard: list[dict[str, Any]] = []
        self.phase, self.is_linked = "ready", True
        self.given: dict[str, list[Given]] = {}
        self._usage: Counter[str] = Counter()
        self.model.read(texts)
        assert self._hear(self.driven.create(*texts)) == ["created", "in_progress"]

    @property
    def turn(self) -> ModelTurn:
        assert self.model.turn is not None
        return self.model.turn

    def _hear(self, events: list[dict[str, Any]] | None = None) -> list[str]:
        """Watch what was committed; returns the events' types."""
        self.heard = self.driven.take() if events is None else events
        for event in self.heard:
            self.watch.hear(event)
        return types_of(self.heard)

    def _ended(self, state: str, reason: str | None = None) -> None:
        """The terminal was the last thing said, and says what it must."""
        self._hear()
        terminal = self.watch.terminal
        assert terminal is not None
        assert terminal is self.heard[-1]
        kind = "incomplete" if state == "cancelled" else state
        assert terminal["type"] == f"response.{kind}"
        told = terminal["response"]
        assert told["status"] == state
        if state == "incomplete":
            assert told["incomplete_details"] == {"reason": reason}
        unconsumed = [item["content"] for item in told["unconsumed_input"]]
        assert unconsumed == self.model.waiting
        if self.phase == "turn":
            self._add_usage(0)
        self._check_usage(told)
        self.model.state = state

    # -- the loop ------------------------------------------------------------------------------

    def start_turn(self, said: Sequence[Said]) -> None:
        self.response.start_turn(0)
        assert self._hear() == []
        ids = self.response.prompt_from(0)
        started = self.driven.records[-1]
        assert isinstance(started, TurnStarted)
        assert started.prompt_tokens == len(ids)
        self.model.start_turn(said, len(ids))
        self.phase = "turn"
        head = spell(self.response.head)
        assert self.driven.prompt() == f"{head}{self.model.prompt}<|start|>assistant"
        assert self.response.prompt_from(len(ids) // 2) == ids[len(ids) // 2 :]

    def sample(self, sizes: Sequence[int]) -> None:
        """Engine steps of these sizes, as far as the turn goes."""
        rest, steps = self.turn.rest, []
        for size in sizes:
            steps.append(rest[:size])
            rest = rest[size:]
        sample(self.response, *(step for step in steps if step))
        self._hear()
        self.model.sample(sum(map(len, steps)), SUFFIX, HOSTED)

    def retry(self) -> None:
        """The engine failed within the turn; it is tried again from the recorded ids."""
        self.response.start_turn(1)
        assert self._hear() == []

    def end_turn(self, cached_tokens: int) -> None:
        """The engine says everything that is left, and stops."""
        self.sample([len(self.turn.rest)])
        self.response.end_turn("stop", cached_tokens)
        assert self._hear() == []
        self._add_usage(cached_tokens)
        self.model.end_turn()
        self.phase = "after"

    def cut_turn(self) -> None:
        """The engine meets `max_output_tokens`, wherever the turn is."""
        before = self.response.context.token_count
        self.response.end_turn("length", 0)
        self._ended("incomplete", "max_output_tokens")
        turn, context = self.turn, self.response.context
        whole = turn.said[: turn.whole_count()]
        left = context.ids_from(before)
        assert left.count(CALL) == sum(isinstance(said, SaidCall) for said in whole)
        is_text_cut = turn.open_part() is not None and not isinstance(turn.open_part(), SaidCall)
        statuses = [getattr(item, "status", None) for item in context.items()]
        assert statuses.count("incomplete") == is_text_cut, "a parent, minus a cut call"

    def fail(self) -> None:
        error = {"code": "server_error", "message": "the engine failed"}
        self.response.end("failed", error=(error["code"], error["message"]))
        self._ended("failed")
        assert self.heard[-1]["response"]["error"] == error

    def finish_turn(self, text: str) -> None:
        """The next hosted call's result, or, with all of them in, the stop."""
        waiting = [call for call in self.model.calls if call.is_hosted and call.answer is None]
        if not waiting:
            self._stop()
            return
        expected = waiting[0]
        call = next(c for c in self.response.calls.hosted() if c.call_id == expected.call_id)
        self.response.answer_hosted(call, hosted_answer(call, text))
        expected.answer = text
        is_item = expected.said.kind != "hosted_call"
        assert self._hear() == ["output_item.added", "output_item.done"] * is_item
        self.model.item_count += is_item

    def _stop(self) -> None:
        how = self.model.goes_on()
        refused = self.model.closes if how in ("suspended", "continued") else []
        self.response.stop()
        if how == "completed":
            refused = self.model.closes if self.model.pending() else []
            self._ended("completed")
        else:
            says_done = self.config.says_done and how != "silent"
            assert self._hear() == ["done"] * says_done
            self.model.state = how if how in ("suspended", "idle") else "sampling"
            self.phase, self.model.turn = "ready", None
            if says_done:
                self._check_done(self.heard[0]["response"])
        assert self.response.take_refused_closes() == refused
        if how != "silent":  # a close waits on while only the server's own calls go on
            self.model.closes = []
        if self.model.must_yield and self.model.is_open:
            self._supersede()  # nobody comes between a turn's end and the create that waits

    def _check_done(self, told: dict[str, Any]) -> None:
        assert told["status"] == "in_progress"
        assert told["state"] == self.model.state
        pending = [{"call_id": c.call_id, "name": c.said.name} for c in self.model.pending()]
        assert told["pending_tool_calls"] == pending
        self._check_usage(told)

    def _add_usage(self, cached: int) -> None:
        turn = self.turn
        self._usage.update(
            input=turn.input_tokens,
            cached=cached,
            output=turn.fed,
            reasoning=turn.reasoning_tokens(),
            total=turn.input_tokens + turn.fed,
        )

    def _check_usage(self, told: dict[str, Any]) -> None:
        assert flat_usage(told["usage"]) == self._usage
        self._usage = Counter()

    # -- the client ----------------------------------------------------------------------------

    def append(self, given: list[Given], key: str | None = None) -> None:
        """An append, as a lane makes it, and whatever it must be answered with."""
        payload = repr(given).encode()
        verdict = self.model.judge(given, key, payload)
        entries = [(place, self.entry(*each)) for place, each in enumerate(given)]

        def as_a_lane() -> bytes:
            repeated = self.response.repeat_of(key, payload)  # looked up first, always
            return repeated or self.response.append(entries, key, payload)

        if verdict == "repeat":
            assert key is not None
            before = freeze(self.response)
            assert as_a_lane() == self.model.keys[key][1]
            assert freeze(self.response) == before, "a repeat commits nothing"
        elif verdict != "accepted":
            self.is_refused(verdict, as_a_lane)
        else:
            accepted = as_a_lane()
            self.model.accept(given)
            self._check_acceptance(accepted, key)
            if key is not None:
                self.model.keys[key] = (payload, accepted)
                self.given[key] = given

    def entry(self, call_id: str | None, text: str) -> Entry:
        """An admitted item of an append."""
        if call_id is None:
            return message(text)
        call = self.model.known.get(call_id)
        if call is None:
            return output(call_id, "shell", text)
        return output(call_id, call.said.name, text, call.said.kind)

    def _check_acceptance(self, accepted: bytes, key: str | None) -> None:
        assert self._hear() == ["append.accepted"]
        assert self.driven.frames[-1] == accepted
        told = dict(self.heard[0])
        del told["sequence_number"]
        assert told == {
            "type": "response.append.accepted",
            "response_id": RESPONSE_ID,
            "event_id": key,
            "pending": [call.call_id for call in self.model.pending()],
        }

    def is_refused(self, verdict: Verdict, command: Callable[[], object]) -> None:
        """The command raises what is documented, and changes nothing."""
        error_type, code = FAULTS[verdict]
        before = freeze(self.response)
        with pytest.raises(ClientFault) as caught:
            command()
        assert type(caught.value) is error_type
        assert caught.value.code == code
        assert freeze(self.response) == before, "a refused command changes nothing"

    def cancel(self) -> None:
        self.response.cancel()
        self._ended("cancelled")

    def close(self) -> None:
        """At once if idle; else at the turn's end."""
        if self.model.state == "suspended":
            self.is_refused("pending", lambda: self.response.close(nothing))
            return
        self.response.close(nothing)
        if self.model.state == "idle":
            self._ended("completed")
        else:
            assert self._hear() == []
            self.model.closes.append(nothing)

    def receive_create(self) -> None:
        """A create came on the lane: it waits for the turn's end, or supersedes at once."""
        if self.model.state in ("created", "sampling"):
            self.response.must_yield = self.model.must_yield = True
        else:
            self._supersede()

    def _supersede(self) -> None:
        was_idle = self.model.state == "idle"
        self.response.supersede()
        self._ended("completed" if was_idle else "incomplete", "superseded")

    # -- the link and the clock ----------------------------------------------------------------

    def keep_alive(self) -> None:
        self.response.keep_alive()
        assert self._hear() == ["in_progress"]

    def time_out_calls(self) -> None:
        pending = self.model.pending()
        results = {c.call_id: self.entry(c.call_id, "timed out") for c in pending}
        self.response.expire_calls(results)
        if self.config.options.on_tool_timeout == "incomplete":
            self._ended("incomplete", "tool_timeout")
            return
        assert self._hear() == []
        for call in pending:
            call.answer = "timed out"
        self.model.state = "sampling"

    def lose_link(self) -> None:
        self.is_linked = False
        was_idle = self.model.state == "idle"
        self.response.lose_link()
        if self.config.is_detachable:
            assert self._hear() == []
        else:
            self._ended("completed" if was_idle else "incomplete", "detached")

    def attach(self) -> None:
        self.is_linked = True
        self.response.attach()
        assert self._hear() == []
        self.model.epoch += 1

    def time_out_detached(self) -> None:
        self.response.expire_detached()
        self._ended("incomplete", "detached")

    # -- what always holds ---------------------------------------------------------------------

    def check_state(self) -> None:
        """State, epoch and pending calls are the model's."""
        response, model = self.response, self.model
        assert response.state is not None
        assert response.state.value == model.state
        assert response.is_open == model.is_open
        assert response.attach_epoch == model.epoch
        told = [
            (call.call_id, call.name, call.arguments, call.maybe_executed)
            for call in response.pending_calls()
        ]
        assert told == [
            (call.call_id, call.said.name, call.said.arguments, call.epoch < model.epoch)
            for call in model.pending()
        ]
        assert {call.call_id for call in model.pending()} <= set(self.watch.announced)
        if model.is_open:
            assert len(self.watch.items) == model.item_count

    def check_commands_after_the_end(self) -> None:
        for command in (self.response.cancel, lambda: self.response.close(nothing)):
            self.is_refused("ended", command)
        before = freeze(self.response)
        for slip in (
            self.response.supersede,
            self.response.lose_link,
            self.response.end_detached,
            self.response.attach,
            self.response.keep_alive,
            lambda: self.response.start_turn(0),
            lambda: sample(self.response, [1]),
            lambda: self.response.end("completed"),
        ):
            with pytest.raises(AssertionError):
                slip()
        assert freeze(self.response) == before

    def check_records(self) -> None:
        """They say and remember the same again, and give each call exactly one result."""
        assert self.driven.replayed() == self.driven.frames
        refolded = self.driven.refolded()
        for name in vars(Fold(self.config)):
            assert freeze(getattr(refolded, name)) == freeze(getattr(self.response, name)), name
        results: list[str] = []
        for record in self.driven.records:
            match record:
                case Appended() | Expired():
                    results += record.outputs
                case Hosted():
                    results.append(record.call_id)
                case Ended():
                    results += record.unanswered
                case _:
                    pass
        assert len(results) == len(set(results)), "a call has two results"
        if not self.model.is_open:
            assert set(results) == set(self.model.known), "a call has no result"
            assert self.watch.terminal is not None
