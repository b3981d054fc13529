"""The append protocol's rules for creates, cancels, closes, links and timers (sections 4 to 6)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentloop.core.keys import CreateKeys
from agentloop.core.lanes import LANES_MAX, WAITING_MAX, Queue, check_lane_name
from agentloop.core.response import Response
from agentloop.core.states import OPEN, TRANSITIONS, State, next_state
from agentloop.errors import (
    AgentLoopError,
    ClientFault,
    KeyConflict,
    LimitExceeded,
    ProtocolError,
    StateConflict,
    UnknownResponse,
)
from agentloop.tokens.render import SaidText
from tests.core.core_kit import (
    Driven,
    answer,
    driven,
    freeze,
    hosted_answer,
    ids_of,
    lookup,
    make_config,
    message,
    output,
    sample,
    shell,
    spell,
    types_of,
)

FIRST = "call_0123456789abcdef_0"


def in_state(state: str, **fields: Any) -> Driven:
    """A Response that is in this state, the first turn's call announced where there is one."""
    subject = Driven(make_config(**fields))
    subject.create("go")
    match state:
        case "sampling":
            subject.response.start_turn(0)
            sample(subject.response, ids_of(shell()))
        case "suspended":
            subject.whole_turn(shell())
        case "idle":
            subject.whole_turn(SaidText("fine"))
        case "completed" | "failed" | "cancelled" | "incomplete":
            subject.whole_turn(SaidText("fine"))
            if state == "failed":
                subject.append(message("more"))
            subject.response.end(state)  # type: ignore[arg-type]
    subject.take()
    assert subject.response.state is State(state)
    return subject


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


@pytest.mark.parametrize("state", ["created", "sampling"])
def test_4_1_creates_wait_for_the_turns_end_first_in_first_out(state: str) -> None:
    queue: Queue[int] = Queue()
    queue.carry(in_state(state).response)
    assert [queue.receive(number) for number in range(WAITING_MAX)] == [None] * 16
    with pytest.raises(LimitExceeded) as caught:
        queue.receive(16)
    assert (caught.value.code, caught.value.status) == ("too_many_queued", 429)
    assert queue.last == 15
    assert queue.current is not None
    assert queue.current.must_yield
    assert [queue.next() for _ in range(17)] == [*range(16), None]


@pytest.mark.parametrize("state", [None, "suspended", "idle", "completed"])
def test_4_1_a_create_starts_where_no_turn_runs(state: str | None) -> None:
    queue: Queue[str] = Queue()
    if state is not None:
        queue.carry(in_state(state).response)
    assert queue.receive("create") == "create"
    assert queue.next() is None


def test_4_1_a_response_yields_while_more_creates_wait() -> None:
    queue: Queue[int] = Queue()
    first, second, third = (in_state("sampling").response for _ in range(3))
    queue.carry(first)
    queue.receive(1)
    queue.receive(2)
    queue.next()
    queue.carry(second)
    assert second.must_yield
    queue.next()
    queue.carry(third)
    assert not third.must_yield


def test_4_1_nothing_waits_once_the_link_is_gone() -> None:
    queue: Queue[int] = Queue()
    queue.carry(in_state("sampling").response)
    queue.receive(1)
    queue.clear()
    assert queue.next() is None
    assert queue.last is None


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
    subject.response.close("e")
    assert ended_by(subject)["status"] == "completed"
    assert subject.response.take_refused_closes() == []


def test_4_4_a_close_is_refused_while_suspended() -> None:
    subject = in_state("suspended")
    before = freeze(subject.response)
    with pytest.raises(StateConflict) as caught:
        subject.response.close("e")
    assert (caught.value.code, caught.value.status) == ("calls_pending", 409)
    assert freeze(subject.response) == before


@pytest.mark.parametrize("final", ["hold", "complete"])
def test_4_4_a_close_while_sampling_comes_true_at_the_turns_end(final: str) -> None:
    subject = Driven(make_config(final=final))
    subject.create("go")
    subject.response.close("e")
    subject.whole_turn(SaidText("fine"))
    assert subject.response.state is State.COMPLETED
    assert subject.response.take_refused_closes() == [], "this close was not refused"


@pytest.mark.parametrize("meets", ["calls", "early answers", "a message"])
def test_4_4_a_close_that_meets_calls_or_a_message_is_refused(meets: str) -> None:
    subject = in_state("sampling")
    subject.response.close("e1")
    subject.response.close(None)
    if meets != "calls":
        subject.append(answer(subject.response.calls.pending()[0]))
    if meets == "a message":
        subject.append(message("m"))
    subject.response.end_turn("stop", 0)
    subject.response.stop()
    assert subject.response.is_open
    assert subject.response.take_refused_closes() == ["e1", None]
    assert subject.response.take_refused_closes() == []


# -- 5 links, lanes, attach ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "is_detachable"),
    [
        ({}, False),
        ({"detach_ttl_s": 0.0}, False),
        ({"detach_ttl_s": 86_400.0}, True),
        ({"is_background": True}, True),
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


def test_5_3_a_lane_carries_one_response() -> None:
    queue: Queue[int] = Queue()
    mine, other = in_state("idle").response, in_state("idle").response
    queue.check_free_for(mine)
    queue.carry(mine)
    queue.check_free_for(mine)
    with pytest.raises(StateConflict) as caught:
        queue.check_free_for(other)
    assert (caught.value.code, caught.value.status) == ("lane_busy", 409)
    mine.cancel()
    queue.check_free_for(other)


def test_5_3_a_frame_without_an_id_needs_a_response_on_its_lane() -> None:
    queue: Queue[int] = Queue()
    with pytest.raises(UnknownResponse) as caught:
        queue.target()
    assert (caught.value.code, caught.value.status) == ("response_not_found", 400)
    mine = in_state("completed").response
    queue.carry(mine)
    assert queue.target() is mine


@pytest.mark.parametrize("name", [None, "a", "A-Z_0.9", "x" * 256])
def test_lane_names_that_are_taken(name: str | None) -> None:
    check_lane_name(name, LANES_MAX if name is None else LANES_MAX - 1)


@pytest.mark.parametrize(
    ("name", "known", "code"),
    [
        ("", 0, "invalid_stream_id"),
        ("x" * 257, 0, "invalid_stream_id"),
        ("a b", 0, "invalid_stream_id"),
        ("a\n", 0, "invalid_stream_id"),
        ("ä", 0, "invalid_stream_id"),
        ("a", 32, "websocket_stream_limit_reached"),
    ],
)
def test_lane_names_that_are_refused(name: str, known: int, code: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_lane_name(name, known)
    assert (caught.value.code, caught.value.status) == (code, 400)
    assert caught.value.param == "stream_id"


# -- 3.5 keys of creates ---------------------------------------------------------------------------


def test_3_5_a_create_with_a_known_key_is_the_response_it_made() -> None:
    keys = CreateKeys()
    assert keys.find("k", b"one") is None
    keys.reserve("k", b"one", "resp_a")
    assert keys.find("k", b"one") == "resp_a"
    with pytest.raises(KeyConflict):
        keys.find("k", b"two")
    keys.release("k")
    assert keys.find("k", b"two") is None


def test_3_5_creates_without_a_key_are_all_new() -> None:
    keys = CreateKeys()
    keys.reserve(None, b"", "resp_a")
    assert keys.find(None, b"") is None
    keys.release(None)


def test_3_5_the_oldest_keys_are_forgotten() -> None:
    keys = CreateKeys(keys_max=2)
    for key in "abc":
        keys.reserve(key, b"", f"resp_{key}")
    assert [keys.find(key, b"") for key in "abc"] == [None, "resp_b", "resp_c"]


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


def test_events_of_a_create() -> None:
    subject = Driven()
    assert types_of(subject.create("go")) == ["created", "in_progress"]
    response: Response = subject.response
    assert repr(response) == f"<Response {response.id} created, turn 0, 0 pending>"
    assert issubclass(ClientFault, AgentLoopError)
