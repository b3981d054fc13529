"""Random lives of a Response, each command held against the model and each event against the
watch. Nothing here does I/O: commands are given in any order that the server's shell could."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentloop.core.context import EMPTY
from agentloop.core.fold import Fold
from agentloop.core.records import Appended, Ended, Expired, Hosted
from agentloop.errors import ClientFault, KeyConflict, StateConflict, UnknownCall
from agentloop.tokens.render import Said, SaidCall, SaidReasoning, SaidText
from tests.core.core_kit import (
    HOSTED,
    RESPONSE_ID,
    SUFFIX,
    Driven,
    freeze,
    hosted_answer,
    lookup,
    make_config,
    message,
    output,
    patch,
    search,
    shell,
    spell,
    types_of,
)
from tests.core.core_model import Given, Model, Verdict
from tests.core.core_watch import TERMINALS, Watch, flat_usage

TEXTS = st.sampled_from(["a", "two words", "", "naïve 🧑‍🚒 café", "<|end|>"])
SAID = st.one_of(
    st.sampled_from([SaidReasoning("think"), SaidReasoning("ще 🦜 think"), SaidText("")]),
    st.builds(SaidText, TEXTS),
    st.sampled_from([shell(), shell("pwd"), shell("🦜"), patch()]),
    st.sampled_from([lookup(), search(), shell("x"), patch("")]),
)
TURNS = st.lists(SAID, max_size=5)
RARELY = st.integers(0, 7).map(lambda n: n == 7)
KEYS = st.sampled_from([None, None, "k1", "k2", "k3"])
OPTIONS = st.fixed_dictionaries(
    {
        "parks": st.sampled_from([True, True, True, True, False]),
        "final": st.sampled_from([None, "hold", "complete"]),
        "detach_ttl_s": st.sampled_from([0.0, 60.0]),
        "on_tool_timeout": st.sampled_from(["incomplete", "result"]),
        "is_background": st.booleans(),
        "says_done": st.sampled_from([True, True, True, False]),
    }
)
FAULTS: dict[Verdict, tuple[type[ClientFault], str]] = {
    "key": (KeyConflict, "idempotency_conflict"),
    "ended": (ClientFault, "response_already_completed"),
    "hands_back": (StateConflict, "not_appendable"),
    "unknown": (UnknownCall, "call_not_found"),
    "resolved": (StateConflict, "call_already_resolved"),
}


def is_open(machine: ResponseLives) -> bool:
    return machine.model.is_open


def has_turn(machine: ResponseLives) -> bool:
    return machine.model.state == "sampling" and machine.phase == "turn"


def has_ended(machine: ResponseLives) -> bool:
    return not machine.model.is_open


class ResponseLives(RuleBasedStateMachine):
    """One Response after another; a finished one may be the parent of the next.

    `phase` is where the loop is: `ready` for a turn, within a `turn`, or `after` its finish.
    """

    @initialize(options=OPTIONS, texts=st.lists(TEXTS, max_size=2))
    def first(self, options: dict[str, Any], texts: list[str]) -> None:
        self._begin(options, texts, EMPTY)

    def _begin(self, options: dict[str, Any], texts: list[str], parent: Any) -> None:
        self.driven = Driven(make_config(**options), parent)
        self.response = self.driven.response
        self.model = Model(
            parks=options["parks"], final=options["final"], parent=spell(parent.ids_from(0))
        )
        self.watch = Watch(RESPONSE_ID)
        self.usage: Counter[str] = Counter()
        self.phase, self.is_linked = "ready", True
        self.model.read(texts)
        assert self._hear(self.driven.create(*texts)) == ["created", "in_progress"]

    def _hear(self, events: list[dict[str, Any]] | None = None) -> list[str]:
        """Watch what was committed; returns the events' types."""
        heard = self.driven.take() if events is None else events
        for event in heard:
            self.watch.hear(event)
        self.heard = heard
        return types_of(heard)

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

    @precondition(lambda self: is_open(self) and self.phase == "ready")
    @precondition(lambda self: self.model.state in ("created", "sampling"))
    @rule(said=TURNS)
    def start_turn(self, said: list[Said]) -> None:
        self.response.start_turn(0)
        assert self._hear() == []
        ids = self.response.prompt_from(0)
        assert self.driven.records[-1].prompt_tokens == len(ids)  # type: ignore[union-attr]
        self.model.start_turn(said, len(ids))
        self.phase = "turn"
        head = spell(self.response.head)
        assert self.driven.prompt() == f"{head}{self.model.prompt}<|start|>assistant"
        assert self.response.prompt_from(len(ids) // 2) == ids[len(ids) // 2 :]

    @precondition(has_turn)
    @rule(sizes=st.lists(st.sampled_from([1, 2, 5, 40]), min_size=1, max_size=8))
    def sample(self, sizes: list[int]) -> None:
        self._sample(sizes)

    def _sample(self, sizes: list[int]) -> None:
        turn = self.model.turn
        assert turn is not None
        rest, steps = turn.rest, []
        for size in sizes:
            steps.append(rest[:size])
            rest = rest[size:]
        self.response.sample([step for step in steps if step])
        self._hear()
        self.model.sample(sum(map(len, steps)), SUFFIX, HOSTED)

    @precondition(has_turn)
    @rule(cached=st.floats(0, 1))
    def end_turn(self, cached: float) -> None:
        """The engine says everything that is left, and stops."""
        turn = self.model.turn
        assert turn is not None
        self._sample([len(turn.rest)])
        cached_tokens = int(cached * turn.input_tokens)
        self.response.end_turn("stop", cached_tokens)
        assert self._hear() == []
        self._add_usage(cached_tokens)
        self.model.end_turn()
        self.phase = "after"

    @precondition(has_turn)
    @rule(really=RARELY)
    def cut_turn(self, really: bool) -> None:
        """The engine meets `max_output_tokens`, wherever the turn is."""
        if not really:
            return
        self.response.end_turn("length", 0)
        self._ended("incomplete", "max_output_tokens")
        self._check_parent_without_cut_call()

    def _check_parent_without_cut_call(self) -> None:
        turn, context = self.model.turn, self.response.context
        assert turn is not None
        said = spell(turn.flat[: turn.fed]).removesuffix("<|return|>")
        is_cut_call = isinstance(turn.open_part(), SaidCall)
        text = spell(context.ids_from(0)).removeprefix(self.model.prompt)
        if is_cut_call:
            assert not said.startswith(text.removeprefix("<|start|>assistant")) or text != said
        whole = [said for said in turn.said[: turn.whole_count()] if isinstance(said, SaidCall)]
        assert text.count("<|call|>") == len(whole)
        statuses = [getattr(item, "status", None) for item in context.items()]
        is_text_cut = turn.open_part() is not None and not is_cut_call
        assert statuses.count("incomplete") == is_text_cut

    @precondition(has_turn)
    @rule()
    def retry(self) -> None:
        """The engine failed within the turn; it is tried again from the recorded ids."""
        self.response.start_turn(1)
        assert self._hear() == []

    @precondition(has_turn)
    @rule(really=RARELY)
    def fail(self, really: bool) -> None:
        if really:
            self.response.end("failed", error=("server_error", "the engine failed"))
            self._ended("failed")
            assert self.watch.terminal is not None
            error = self.watch.terminal["response"]["error"]
            assert error == {"code": "server_error", "message": "the engine failed"}

    @precondition(lambda self: self.model.state == "sampling" and self.phase == "after")
    @rule(text=TEXTS)
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
        self.response.stop()
        if how == "completed":
            self._ended("completed")
            refused = self.model.closes if self.model.pending() else []
            assert self.response.take_refused_closes() == refused
            return
        says_done = self.driven.config.says_done and how != "silent"
        assert self._hear() == ["done"] * says_done
        self.model.state = how if how in ("suspended", "idle") else "sampling"
        self.phase = "ready"
        self.model.turn = None
        if says_done:
            self._check_done(self.heard[0]["response"])
        assert self.response.take_refused_closes() == self.model.closes
        self.model.closes = []
        if self.model.must_yield:
            self._supersede()

    def _check_done(self, told: dict[str, Any]) -> None:
        assert told["status"] == "in_progress"
        assert told["state"] == self.model.state
        pending = [{"call_id": c.call_id, "name": c.said.name} for c in self.model.pending()]
        assert told["pending_tool_calls"] == pending
        self._check_usage(told)

    def _supersede(self) -> None:
        """What the lane does with a create that has waited: nobody else comes in between."""
        was_idle = self.model.state == "idle"
        self.response.supersede()
        self._ended("completed" if was_idle else "incomplete", "superseded")

    def _add_usage(self, cached: int) -> None:
        turn = self.model.turn
        assert turn is not None
        self.usage.update(
            input=turn.input_tokens,
            cached=cached,
            output=turn.fed,
            reasoning=turn.reasoning_tokens(),
            total=turn.input_tokens + turn.fed,
        )

    def _check_usage(self, told: dict[str, Any]) -> None:
        assert flat_usage(told["usage"]) == self.usage
        self.usage = Counter()

    @precondition(lambda self: self.model.state == "sampling")
    @rule()
    def keep_alive(self) -> None:
        self.response.keep_alive()
        assert self._hear() == ["in_progress"]

    # -- the client ----------------------------------------------------------------------------

    @rule(data=st.data(), key=KEYS)
    def append(self, data: st.DataObject, key: str | None) -> None:
        """Anything goes: partial, early, twice, wrong, empty, after the end."""
        ids = [*self.model.known, *(call.call_id for call in self.model.pending()), "call_unknown"]
        targets = st.one_of(st.none(), st.sampled_from(ids))
        given = data.draw(st.lists(st.builds(Given, targets, TEXTS), max_size=3))
        self._append(given, key)

    @precondition(lambda self: self.model.pending())
    @rule(text=TEXTS, count=st.integers(1, 4), is_reversed=st.booleans(), key=KEYS)
    def answer(self, text: str, count: int, is_reversed: bool, key: str | None) -> None:
        """Some pending calls, or all, in either order."""
        pending = self.model.pending()[:: -1 if is_reversed else 1]
        self._append([Given(call.call_id, text) for call in pending[:count]], key)

    @rule(data=st.data(), with_message=st.booleans(), key=KEYS)
    def answer_again(self, data: st.DataObject, with_message: bool, key: str | None) -> None:
        """A result that is known already is dropped, whatever the key."""
        known = [Given(c.call_id, c.answer) for c in self.model.known.values() if c.answer]
        if known:
            given = [data.draw(st.sampled_from(known)), *[Given(None, "new")] * with_message]
            self._append(given, key)

    @precondition(is_open)
    @rule(text=TEXTS)
    def say(self, text: str) -> None:
        self._append([Given(None, text)], None)

    def _append(self, given: list[Given], key: str | None) -> None:
        payload = repr(given).encode()
        verdict = self.model.judge(given, key, payload)
        entries = [(place, self._entry(*each)) for place, each in enumerate(given)]
        if verdict == "repeat":
            assert key is not None
            before = freeze(self.response)
            assert self.response.repeat_of(key, payload) == self.model.keys[key][1]
            assert freeze(self.response) == before, "a repeat commits nothing"
        elif verdict in FAULTS:
            self._is_refused(verdict, lambda: self._as_a_lane(entries, key, payload))
        else:
            accepted = self._as_a_lane(entries, key, payload)
            self.model.accept(given)
            if self.model.state == "sampling" and self.model.turn is None:
                self.phase = "ready"
            self._check_acceptance(accepted, key)
            if key is not None:
                self.model.keys[key] = (payload, accepted)

    def _as_a_lane(self, entries: list[Any], key: str | None, payload: bytes) -> bytes:
        """The key is looked up first, always."""
        return self.response.repeat_of(key, payload) or self.response.append(entries, key, payload)

    def _entry(self, call_id: str | None, text: str) -> Any:
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

    def _is_refused(self, verdict: Verdict, command: Any) -> None:
        error_type, code = FAULTS[verdict]
        before = freeze(self.response)
        with pytest.raises(ClientFault) as caught:
            command()
        assert type(caught.value) is error_type
        assert caught.value.code == code
        assert freeze(self.response) == before, "a refused command changes nothing"

    @precondition(is_open)
    @rule(really=RARELY)
    def cancel(self, really: bool) -> None:
        if really:
            self.response.cancel()
            self._ended("cancelled")

    @precondition(is_open)
    @rule(really=RARELY)
    def close(self, really: bool) -> None:
        """At once if idle; else at the turn's end."""
        if not really or self.model.must_yield:
            return
        if self.model.state == "suspended":
            before = freeze(self.response)
            with pytest.raises(StateConflict) as caught:
                self.response.close("e")
            assert caught.value.code == "calls_pending"
            assert freeze(self.response) == before
            return
        self.response.close("e")
        if self.model.state == "idle":
            self._ended("completed")
        else:
            assert self._hear() == []
            self.model.closes.append("e")

    @precondition(is_open)
    @rule(really=RARELY)
    def receive_create(self, really: bool) -> None:
        """A create came on the lane: it waits for the turn's end, or supersedes at once."""
        if not really or self.model.closes:
            return
        if self.model.state in ("created", "sampling"):
            self.response.must_yield = self.model.must_yield = True
        else:
            self._supersede()

    # -- the link and the clock ----------------------------------------------------------------

    @precondition(lambda self: self.model.state == "suspended")
    @rule(really=RARELY)
    def time_out_calls(self, really: bool) -> None:
        if not really:
            return
        pending = self.model.pending()
        results = {c.call_id: self._entry(c.call_id, "timed out") for c in pending}
        self.response.expire_calls(results)
        if self.driven.config.options.on_tool_timeout == "incomplete":
            self._ended("incomplete", "tool_timeout")
            return
        assert self._hear() == []
        for call in pending:
            call.answer = "timed out"
        self.model.state = "sampling"

    @precondition(lambda self: is_open(self) and self.is_linked)
    @rule(really=RARELY)
    def lose_link(self, really: bool) -> None:
        if not really:
            return
        self.is_linked = False
        was_idle = self.model.state == "idle"
        self.response.lose_link()
        if self.driven.config.is_detachable:
            assert self._hear() == []
        else:
            self._ended("completed" if was_idle else "incomplete", "detached")

    @precondition(is_open)
    @rule(really=RARELY)
    def attach(self, really: bool) -> None:
        if really:
            self.is_linked = True
            self.response.attach()
            assert self._hear() == []
            self.model.epoch += 1

    @precondition(lambda self: is_open(self) and not self.is_linked)
    @rule(really=RARELY)
    def time_out_detached(self, really: bool) -> None:
        if really:
            self.response.expire_detached()
            self._ended("incomplete", "detached")

    # -- after the terminal --------------------------------------------------------------------

    @precondition(has_ended)
    @rule()
    def command_after_the_end(self) -> None:
        for command in (self.response.cancel, self.response.close):
            self._is_refused("ended", command)
        before = freeze(self.response)
        for slip in (
            self.response.supersede,
            self.response.lose_link,
            self.response.expire_detached,
            self.response.attach,
            self.response.keep_alive,
            lambda: self.response.start_turn(0),
            lambda: self.response.sample([[1]]),
            lambda: self.response.end("completed"),
        ):
            with pytest.raises(AssertionError):
                slip()
        assert freeze(self.response) == before

    @precondition(has_ended)
    @rule(options=OPTIONS, texts=st.lists(TEXTS, max_size=2), is_child=st.booleans())
    def next_life(self, options: dict[str, Any], texts: list[str], is_child: bool) -> None:
        self.check_life()
        self._begin(options, texts, self.response.context if is_child else EMPTY)

    # -- always --------------------------------------------------------------------------------

    @invariant()
    def state_is_the_models(self) -> None:
        if not hasattr(self, "response"):
            return
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
        if model.state not in ("incomplete", "failed", "cancelled"):
            assert len(self.watch.items) == model.item_count

    def check_life(self) -> None:
        """Records say the same again, and each call has exactly one result."""
        assert self.driven.replayed() == self.driven.frames
        refolded = self.driven.refolded()
        for name in vars(Fold(self.driven.config)):
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
        assert len(results) == len(set(results)), "a call has two results"
        if not self.model.is_open:
            assert set(results) == set(self.model.known), "a call has no result"
            decoded = [msgspec.json.decode(frame)["type"] for frame in self.driven.frames]
            assert sum(kind in TERMINALS for kind in decoded) == 1

    def teardown(self) -> None:
        if hasattr(self, "response"):
            self.check_life()


ResponseLives.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestResponseLives = ResponseLives.TestCase
