"""The append protocol's rules for creates, cancels, closes, links and timers (sections 4 to 6)."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from agentloop.core.states import OPEN, TRANSITIONS, State, next_state
from agentloop.errors import (
    ClientFault,
    StateConflict,
)
from agentloop.tokens.render import SaidText
from tests.core.core_kit import (
    Driven,
    answer,
    driven,
    freeze,
    hosted_answer,
    ids_of,
    in_state,
    lookup,
    make_config,
    message,
    nothing,
    output,
    sample,
    shell,
    spell,
)

FIRST = "call_0123456789abcdef_0"


def ended_by(subject: Driven) -> dict[str, Any]:
    """The one event that the last command made: the terminal's Response."""
    (terminal,) = subject.take()
    told: dict[str, Any] = terminal["response"]
    assert terminal["type"] == "response." + told["status"].replace("cancelled", "incomplete")
    return told


# -- 4 create, cancel, close -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "status", "details"),
    [
        ("idle", "completed", None),
        ("suspended", "incomplete", {"reason": "superseded"}),
    ],
)
def test_4_1_a_superseded_response_ends(state: str, status: str, details: Any) -> None:
    subject = in_state(state)
    subject.response.supersede()
    told = ended_by(subject)
    assert told["status"] == status
    assert told["incomplete_details"] == details


@pytest.mark.parametrize(
    ("state", "code", "status"),
    [
        ("created", "response_not_finished", 409),
        ("sampling", "response_not_finished", 409),
        ("failed", "previous_response_not_found", 400),
        ("cancelled", "previous_response_not_found", 400),
    ],
)
def test_4_2_what_is_no_parent(state: str, code: str, status: int) -> None:
    with pytest.raises(ClientFault) as caught:
        in_state(state).response.as_parent()
    assert (caught.value.code, caught.value.status) == (code, status)
    assert caught.value.param == "previous_response_id"


@pytest.mark.parametrize("state", ["idle", "completed", "incomplete"])
def test_4_2_what_is_a_parent(state: str) -> None:
    response = in_state(state).response
    assert response.as_parent() is response.context


def test_4_2_a_parent_ends_with_the_last_turn_whose_calls_have_results() -> None:
    subject = in_state("idle")
    subject.append(message("more"))
    subject.response.start_turn(0)
    consumed = subject.response.context
    sample(subject.response, ids_of(shell()))
    subject.response.end_turn("stop", 0)
    subject.response.stop()
    subject.take()
    assert subject.response.as_parent() is consumed


@pytest.mark.parametrize("said", [shell(), lookup()], ids=["early", "hosted"])
def test_4_2_a_turn_that_was_answered_and_not_resumed_is_a_parent_with_its_results(
    said: Any,
) -> None:
    subject = Driven()
    subject.create("go")
    subject.turn(said)
    (call,) = subject.response.calls.of_turn
    if call.is_hosted:
        subject.response.answer_hosted(call, hosted_answer(call, "the result"))
    else:
        subject.append(answer(call, "the result"))
    subject.response.must_yield = True
    subject.response.stop()
    subject.response.supersede()
    text = spell(subject.response.as_parent().ids_from(0))
    assert text.count("<|call|>") == text.count("the result") == 1


def test_4_2_a_handed_back_call_is_in_the_parent_for_the_next_create_to_answer() -> None:
    subject = driven(shell(), parks=False)
    assert subject.response.state is State.COMPLETED
    assert spell(subject.response.as_parent().ids_from(0)).count("<|call|>") == 1


def test_4_2_a_child_cannot_change_its_parent() -> None:
    parent = driven(SaidText("one")).response.context
    before = freeze(parent)
    for word in ("left", "right"):
        child = Driven(make_config(), parent)
        child.create(word)
        child.whole_turn(SaidText(word))
        text = child.prompt()
        assert text.count(word) == 2
    assert freeze(parent) == before


@pytest.mark.parametrize("state", ["created", "sampling", "suspended", "idle"])
def test_4_3_a_cancel_ends_at_once_and_keeps_what_was_recorded(state: str) -> None:
    subject = in_state(state)
    items = list(subject.response.transcript.items)
    subject.response.cancel()
    assert ended_by(subject)["status"] == "cancelled"
    assert subject.response.transcript.items == items


def test_4_4_a_close_ends_an_idle_response() -> None:
    subject = in_state("idle")
    subject.response.close(nothing)
    assert ended_by(subject)["status"] == "completed"
    assert subject.response.take_refused_closes() == []


def test_4_4_a_close_is_refused_while_suspended() -> None:
    subject = in_state("suspended")
    before = freeze(subject.response)
    with pytest.raises(StateConflict) as caught:
        subject.response.close(nothing)
    assert (caught.value.code, caught.value.status) == ("calls_pending", 409)
    assert freeze(subject.response) == before


@pytest.mark.parametrize("final", ["hold", "complete"])
def test_4_4_a_close_while_sampling_comes_true_at_the_turns_end(final: str) -> None:
    subject = Driven(make_config(final=final))
    subject.create("go")
    subject.response.close(nothing)
    subject.whole_turn(SaidText("fine"))
    assert subject.response.state is State.COMPLETED
    assert subject.response.take_refused_closes() == [], "this close was not refused"


@pytest.mark.parametrize("meets", ["calls", "early answers", "a message"])
def test_4_4_a_close_that_meets_calls_or_a_message_is_refused(meets: str) -> None:
    subject = in_state("sampling")
    first, second = partial(print, "first"), partial(print, "second")
    subject.response.close(first)
    subject.response.close(second)
    if meets != "calls":
        subject.append(answer(subject.response.calls.pending()[0]))
    if meets == "a message":
        subject.append(message("m"))
    subject.response.end_turn("stop", 0)
    subject.response.stop()
    assert subject.response.is_open
    assert subject.response.take_refused_closes() == [first, second]
    assert subject.response.take_refused_closes() == []


# -- 5 links, lanes, attach ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "is_detachable"),
    [
        ({}, False),
        ({"detach_ttl_s": 0.0}, False),
        ({"detach_ttl_s": 86_400.0}, True),
    ],
)
@pytest.mark.parametrize("state", ["created", "sampling", "suspended", "idle"])
def test_5_1_without_its_link(state: str, fields: dict[str, Any], is_detachable: bool) -> None:
    subject = in_state(state, **fields)
    subject.response.lose_link()
    if is_detachable:
        assert subject.take() == []
        assert subject.response.state is State(state)
        subject.response.expire_detached()
    told = subject.take()[-1]["response"]
    is_well_ended = state == "idle" and not is_detachable
    assert told["status"] == ("completed" if is_well_ended else "incomplete")
    assert told["incomplete_details"] == (None if is_well_ended else {"reason": "detached"})


def test_5_2_a_call_of_an_earlier_attachment_may_have_been_executed() -> None:
    subject = in_state("sampling", detach_ttl_s=60.0)
    subject.response.lose_link()
    subject.response.attach()
    ids = ids_of(shell("old"), shell("new"))
    sample(subject.response, ids[len(ids_of(shell("old"))) :])
    told = [(call.arguments, call.maybe_executed) for call in subject.response.pending_calls()]
    assert told == [('{"cmd":"ls"}', True), ('{"cmd":"new"}', False)]
    assert subject.response.attach_epoch == 2


# -- 6 timers --------------------------------------------------------------------------------------


def test_6_the_tool_timeout_ends_a_response_by_default() -> None:
    subject = in_state("suspended")
    subject.response.expire_calls({FIRST: output(FIRST, "shell", "timed out")})
    told = ended_by(subject)
    assert told["status"] == "incomplete"
    assert told["incomplete_details"] == {"reason": "tool_timeout"}


def test_6_the_tool_timeout_tells_the_model_where_that_was_asked_for() -> None:
    subject = driven(shell("a"), shell("b"), on_tool_timeout="result")
    first, second = subject.response.calls.pending()
    subject.append(answer(second, "B"), message("m"))
    subject.response.expire_calls({first.call_id: answer(first, "timed out")})
    assert subject.take() == []
    assert subject.response.state is State.SAMPLING
    subject.response.start_turn(0)
    places = [subject.prompt().index(f"<|message|>{text}<|end|>") for text in ("timed out", "B")]
    assert places == sorted(places)


def test_6_a_keepalive_is_a_record_whose_payload_comes_from_created_alone() -> None:
    subject = in_state("sampling")
    subject.response.keep_alive()
    (event,) = subject.take()
    created = msgspec.json.decode(subject.frames[0])
    assert event["type"] == "response.in_progress"
    assert event["response"] == created["response"]
    assert subject.records[-1].kind == "kept_alive"


# -- the table -------------------------------------------------------------------------------------


def test_the_table_knows_every_state_and_ends_where_terminals_are() -> None:
    assert set(TRANSITIONS) == set(State)
    for state, moves in TRANSITIONS.items():
        assert bool(moves) == (state in OPEN)
        ends = {kind for kind, target in moves.items() if target not in OPEN}
        assert not moves or {"incomplete", "cancelled"} <= ends, "anything open can be ended"


@pytest.mark.parametrize("state", [state for state in State if state not in OPEN])
def test_nothing_follows_a_terminal(state: State) -> None:
    with pytest.raises(AssertionError, match=state.value):
        next_state(state, "kept_alive")
