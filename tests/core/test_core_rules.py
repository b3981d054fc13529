"""The append protocol's rules of state, one test or table per rule, named by section and number."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentloop.core.records import Ended, Sampled
from agentloop.core.states import State
from agentloop.errors import AgentLoopError, ClientFault, KeyConflict, StateConflict, UnknownCall
from agentloop.tokens.render import SaidReasoning, SaidText
from tests.core.core_kit import (
    RESPONSE_ID,
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
    patch,
    sample,
    search,
    shell,
    types_of,
)

NO_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
FIRST, SECOND = "call_0123456789abcdef_0", "call_0123456789abcdef_1"


def at_work(*said: Any, **fields: Any) -> Driven:
    """A Response within its first turn, everything sampled, not finished."""
    subject = Driven(make_config(**fields))
    subject.create("go")
    subject.response.start_turn(0)
    sample(subject.response, ids_of(*said))
    subject.take()
    return subject


def stop(subject: Driven) -> list[dict[str, Any]]:
    """The turn's finish and stop."""
    subject.response.end_turn("stop", 0)
    subject.response.stop()
    return subject.take()


def cancelled(subject: Driven) -> dict[str, Any]:
    """The terminal of a cancel."""
    subject.response.cancel()
    (terminal,) = subject.take()
    return terminal


# -- 2 states and turns ----------------------------------------------------------------------------


def test_2_1_a_turn_ends_on_the_finish_not_on_a_token() -> None:
    subject = at_work(SaidText("all said"))
    assert subject.response.state is State.SAMPLING
    assert [e["response"]["state"] for e in stop(subject)] == ["idle"]


def test_2_1_a_turn_may_hold_several_calls() -> None:
    (done,) = stop(at_work(shell("a"), patch(), shell("b")))
    names = [call["name"] for call in done["response"]["pending_tool_calls"]]
    assert names == ["shell", "apply_patch", "shell"]


@pytest.mark.parametrize(
    ("said", "state", "pending"),
    [
        (shell(), "suspended", [{"call_id": FIRST, "name": "shell"}]),
        (SaidText("fine"), "idle", []),
    ],
    ids=["suspended", "idle"],
)
def test_2_2_done_says_that_the_loop_stops_for_the_client(
    said: Any, state: str, pending: list[Any]
) -> None:
    subject = at_work(said)
    (done,) = stop(subject)
    told = done.pop("response")
    assert done == {"type": "response.done", "sequence_number": len(subject.frames) - 1}
    assert [item["id"].rpartition("_")[2] for item in told.pop("output")] == ["0"]
    assert told.pop("usage") == told.pop("usage_total") != NO_USAGE
    assert told == {
        "id": RESPONSE_ID,
        "object": "response",
        "status": "in_progress",
        "state": state,
        "pending_tool_calls": pending,
    }


def test_2_2_a_turn_that_goes_on_for_hosted_calls_sends_no_done() -> None:
    subject = driven(lookup(), search())
    assert "response.done" not in types_of([msgspec.json.decode(f) for f in subject.frames])
    (done,) = [e for e in subject.whole_turn(SaidText("fine")) if e["type"] == "response.done"]
    kinds = [item["type"] for item in done["response"]["output"]]
    assert kinds == ["function_call", "web_search_call", "function_call_output", "message"]


def test_2_2_an_append_that_causes_the_next_turn_makes_a_done() -> None:
    subject = at_work(SaidText("fine"))
    subject.append(message("more"))
    (done,) = stop(subject)
    assert done["response"]["state"] == "sampling"
    assert done["response"]["pending_tool_calls"] == []


def test_2_2_an_append_that_causes_nothing_makes_no_done() -> None:
    subject = at_work(lookup())
    subject.append()
    subject.response.end_turn("stop", 0)
    (call,) = subject.response.calls.hosted()
    subject.response.answer_hosted(call, hosted_answer(call))
    subject.take()
    subject.response.stop()
    assert subject.take() == []


def test_2_3_a_call_is_announced_as_soon_as_it_is_whole() -> None:
    subject = at_work()
    ids = ids_of(shell(), SaidText("and more"))
    end = len(ids_of(shell()))
    sample(subject.response, ids[: end - 1])
    assert "output_item.done" not in types_of(subject.take())
    assert not subject.response.calls.pending()
    sample(subject.response, ids[end - 1 : end])
    assert types_of(subject.take()) == ["function_call_arguments.done", "output_item.done"]
    assert [call.call_id for call in subject.response.calls.pending()] == [FIRST]


@pytest.mark.parametrize("cut", [shell("long"), patch("long")], ids=lambda said: said.kind)
def test_2_3_a_cut_call_shows_only_in_the_terminal(cut: Any) -> None:
    subject = at_work(shell())
    sample(subject.response, ids_of(shell(), cut)[len(ids_of(shell())) : -2])
    subject.response.end_turn("length", 0)
    *others, terminal = subject.take()
    assert "output_item.done" not in types_of(others)
    statuses = [item["status"] for item in terminal["response"]["output"]]
    assert statuses == ["completed", "incomplete"]
    assert subject.response.calls.name_of(SECOND) is None
    ended = subject.records[-1]
    assert isinstance(ended, Ended)
    assert ended.unanswered == [FIRST], "calls announced earlier stay announced"


@pytest.mark.parametrize("cut", [shell("long"), patch("long"), search("long")])
def test_2_3_a_cut_call_leaves_neither_item_nor_ids(cut: Any) -> None:
    subject = at_work()
    before = subject.response.context
    sample(subject.response, ids_of(cut)[:-2])
    subject.response.end_turn("length", 0)
    assert subject.response.context.items() == before.items()
    assert subject.response.context.token_count == before.token_count


def test_2_3_the_deltas_of_a_cut_text_are_its_text() -> None:
    subject = at_work()
    sample(subject.response, ids_of(SaidText("🦜"))[:-2])  # half a character is held back
    subject.response.end_turn("length", 0)
    events = subject.take()
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    texts = [e["text"] for e in events if e["type"] == "response.output_text.done"]
    assert texts == ["".join(deltas)]


def test_2_4_outputs_in_call_order_then_messages() -> None:
    subject = driven(shell("a"), shell("b"))
    first, second = subject.response.calls.pending()
    subject.append(message("and then"), answer(second, "B"), answer(first, "A"))
    subject.response.start_turn(0)
    after = subject.prompt().rpartition("<|call|>")[2]
    places = [after.index(f"<|message|>{text}<|end|>") for text in ("A", "B", "and then")]
    assert places == sorted(places)
    assert after.count(" to=assistant<|channel|>commentary") == 2


def test_2_4_a_partial_append_stays_suspended_and_the_last_output_resumes() -> None:
    subject = driven(shell("a"), shell("b"))
    first, second = subject.response.calls.pending()
    assert subject.append(answer(second))["pending"] == [first.call_id]
    assert subject.response.state is State.SUSPENDED
    assert subject.append(answer(first))["pending"] == []
    assert subject.response.state is State.SAMPLING
    assert subject.records[-1].kind == "resumed"


def test_2_4_a_resumed_turn_opens_with_no_frame_of_its_own() -> None:
    subject = driven(shell())
    subject.append(answer(subject.response.calls.pending()[0]))
    subject.response.start_turn(0)
    assert subject.take() == []
    sample(subject.response, ids_of(SaidText("fine"))[:3])
    assert types_of(subject.take())[0] == "output_item.added"


def test_2_5_an_output_may_come_while_the_turn_runs() -> None:
    subject = at_work(shell())
    assert subject.append(answer(subject.response.calls.pending()[0]))["pending"] == []
    (done,) = stop(subject)
    assert done["response"]["state"] == "sampling"
    assert subject.response.state is State.SAMPLING
    subject.response.start_turn(0)
    assert subject.prompt().count("<|message|>ok<|end|>") == 1


def test_2_6_a_message_waits_for_the_turns_end_and_defers_completion() -> None:
    subject = at_work(SaidText("fine"), final="complete")
    subject.append(message("wait"))
    assert types_of(stop(subject)) == ["done"]
    subject.response.start_turn(0)
    assert subject.prompt().count("wait") == 1
    sample(subject.response, ids_of(SaidText("fine")))
    assert types_of(stop(subject))[-1] == "completed"


@pytest.mark.parametrize("state", ["created", "sampling", "suspended"])
def test_2_6_the_terminal_lists_unconsumed_input(state: str) -> None:
    subject = Driven()
    subject.create("go")
    if state != "created":
        subject.response.start_turn(0)
        sample(subject.response, ids_of(shell()))
    if state == "suspended":
        stop(subject)
    subject.append(message("unread"))
    told = cancelled(subject)["response"]["unconsumed_input"]
    assert told == [{"type": "message", "role": "user", "content": "unread"}]


def test_2_6_every_unanswered_call_is_recorded_as_cancelled() -> None:
    subject = driven(shell("a"), lookup(), shell("b"))
    subject.append(answer(subject.response.calls.pending()[0]))
    cancelled(subject)
    ended = subject.records[-1]
    assert isinstance(ended, Ended)
    assert ended.unanswered == ["call_0123456789abcdef_2"]


@pytest.mark.parametrize("state", ["sampling", "suspended"])
def test_2_6_nothing_is_pending_after_the_terminal(state: str) -> None:
    subject = at_work(shell()) if state == "sampling" else driven(shell())
    cancelled(subject)
    assert subject.response.pending_calls() == [], "who attaches now would run a cancelled call"


def test_2_6_a_waiting_create_wins_over_a_waiting_message() -> None:
    subject = at_work(SaidText("fine"))
    subject.append(message("unread"))
    subject.response.must_yield = True
    assert [e["response"]["state"] for e in stop(subject)] == ["idle"]
    subject.response.supersede()
    (terminal,) = subject.take()
    assert [item["content"] for item in terminal["response"]["unconsumed_input"]] == ["unread"]


@pytest.mark.parametrize(
    ("said", "fields", "last"),
    [
        (SaidText("fine"), {}, "done"),
        (SaidText("fine"), {"final": "hold"}, "done"),
        (SaidText("fine"), {"final": "complete"}, "completed"),
        (shell(), {"final": "complete"}, "done"),
        (shell(), {"final": "complete", "parks": False}, "completed"),
        (SaidText("fine"), {"final": "complete", "parks": False}, "completed"),
    ],
)
def test_2_7_what_a_turn_leaves(said: Any, fields: dict[str, Any], last: str) -> None:
    assert types_of(stop(at_work(said, **fields)))[-1] == last


def test_2_8_a_cut_turn_is_incomplete() -> None:
    subject = at_work(SaidText("fine"))
    subject.response.end_turn("length", 0)
    (terminal,) = subject.take()
    assert terminal["type"] == "response.incomplete"
    assert terminal["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("position", range(0, 20, 3))
def test_2_8_a_retry_goes_on_within_the_open_item(position: int) -> None:
    ids = ids_of(SaidReasoning("think 🦜 hard"), shell())
    plain, retried = at_work(), at_work()
    sample(plain.response, *([token_id] for token_id in ids))
    sample(retried.response, *([token_id] for token_id in ids[:position]))
    retried.response.start_turn(1)
    assert list(retried.response.transcript.turn_ids) == ids[:position], "recorded ids stay"
    sample(retried.response, *([token_id] for token_id in ids[position:]))
    for subject in (plain, retried):
        stop(subject)
    assert retried.frames == plain.frames
    assert retried.response.prompt_from(0) == plain.response.prompt_from(0)


# -- 3 input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "error_type", "param"),
    [
        (output("call_unknown", "shell", "x"), UnknownCall, "input[1].call_id"),
        (output(FIRST, "shell", "other"), StateConflict, "input[1].call_id"),
    ],
    ids=["unknown", "conflict"],
)
def test_3_1_an_append_is_atomic(second: Any, error_type: type[AgentLoopError], param: str) -> None:
    subject = driven(shell("a"), shell("b"))
    subject.append(output(FIRST, "shell", "one"))
    before = freeze(subject.response)
    with pytest.raises(error_type) as caught:
        subject.append(output(SECOND, "shell", "good"), second)
    assert caught.value.param == param
    assert freeze(subject.response) == before


@pytest.mark.parametrize("key", [None, "k"])
def test_3_3_an_acceptance_is_a_numbered_event(key: str | None) -> None:
    subject = driven(shell("a"), shell("b"))
    number = len(subject.frames)
    assert subject.append(output(FIRST, "shell", "one"), key=key) == {
        "type": "response.append.accepted",
        "sequence_number": number,
        "response_id": RESPONSE_ID,
        "event_id": key,
        "pending": [SECOND],
    }


@pytest.mark.parametrize("is_ended", [False, True])
def test_3_4_a_key_is_looked_up_first_also_after_a_terminal(is_ended: bool) -> None:
    subject = driven(shell())
    accepted = subject.append(message("m"), key="k")
    if is_ended:
        cancelled(subject)
    before = freeze(subject.response)
    assert subject.append(message("m"), key="k") == accepted
    with pytest.raises(KeyConflict) as caught:
        subject.append(message("m"), key="k", payload=b"other")
    assert (caught.value.code, caught.value.status) == ("idempotency_conflict", 422)
    assert freeze(subject.response) == before


def test_3_4_a_repeated_result_is_dropped_and_the_rest_accepted() -> None:
    subject = driven(shell("a"), shell("b"))
    subject.append(output(FIRST, "shell", "one"), key="k1")
    again = subject.append(output(FIRST, "shell", "one"), message("m"), key="k2")
    assert (again["event_id"], again["pending"]) == ("k2", [SECOND])
    assert [entry.item.content for entry in subject.response.waiting] == ["m"]  # type: ignore[union-attr]
    empty = subject.append(output(FIRST, "shell", "one"))
    assert empty["pending"] == [SECOND]


def test_3_4_a_timed_out_call_takes_no_other_result() -> None:
    subject = driven(shell(), on_tool_timeout="result")
    subject.response.expire_calls({FIRST: output(FIRST, "shell", "timed out")})
    subject.take()
    with pytest.raises(StateConflict) as caught:
        subject.append(output(FIRST, "shell", "late"))
    assert (caught.value.code, caught.value.status) == ("call_already_resolved", 409)


def test_3_4_a_hosted_call_takes_no_result_from_a_client() -> None:
    subject = at_work(lookup())
    with pytest.raises(UnknownCall) as caught:
        subject.append(output(FIRST, "lookup", "mine"))
    assert (caught.value.code, caught.value.status) == ("call_not_found", 400)


def test_1_a_response_that_hands_back_takes_no_append() -> None:
    subject = at_work(shell(), parks=False)
    with pytest.raises(StateConflict) as caught:
        subject.append(message("m"))
    assert (caught.value.code, caught.value.status) == ("not_appendable", 409)


def test_3_6_ids_derive_from_the_response_and_the_index() -> None:
    subject = driven(SaidReasoning("r"), SaidText("t"), shell(), patch(), search(), lookup())
    ids = [(item.id, getattr(item, "call_id", None)) for item in subject.response.transcript.items]  # type: ignore[union-attr]
    suffix = "0123456789abcdef"
    assert ids == [
        (f"rs_{suffix}_0", None),
        (f"msg_{suffix}_1", None),
        (f"fc_{suffix}_2", f"call_{suffix}_2"),
        (f"ctc_{suffix}_3", f"call_{suffix}_3"),
        (f"ws_{suffix}_4", None),
        (f"fc_{suffix}_5", f"call_{suffix}_5"),
        (f"fco_{suffix}_6", f"call_{suffix}_5"),
    ]


# -- 7 numbers, usage, output ----------------------------------------------------------------------


def test_7_1_numbers_have_no_gap_over_everything_that_is_replayed() -> None:
    subject = driven(shell())
    subject.append(answer(subject.response.calls.pending()[0]))
    subject.response.keep_alive()
    subject.take()
    subject.whole_turn(SaidText("fine"))
    numbers = [msgspec.json.decode(frame)["sequence_number"] for frame in subject.frames]
    assert numbers == list(range(len(numbers)))
    assert subject.replayed() == subject.frames


@pytest.mark.parametrize("field", ["first_seq", "event_count"])
def test_7_2_a_replay_asserts_what_a_record_stores(field: str) -> None:
    subject = driven(shell())
    record = next(record for record in subject.records if isinstance(record, Sampled))
    setattr(record, field, getattr(record, field) + 1)
    with pytest.raises(AssertionError):
        subject.replayed()


def test_7_3_a_terminal_with_nothing_unreported_says_zeros() -> None:
    subject = driven(SaidText("fine"))
    subject.response.close()
    (terminal,) = subject.take()
    assert terminal["response"]["output"] == []
    assert terminal["response"]["usage"] == NO_USAGE
    assert terminal["response"]["usage_total"]["output_tokens"] > 0


def test_7_3_everything_is_reported_at_the_end_where_no_done_is_sent() -> None:
    subject = driven(shell("a"), says_done=False)
    subject.append(answer(subject.response.calls.pending()[0]))
    subject.whole_turn(SaidText("fine"))
    told = cancelled(subject)["response"]
    assert [item["type"] for item in told["output"]] == ["function_call", "message"]
    assert told["usage"] == told["usage_total"]


def test_7_3_cached_tokens_are_a_part_of_the_input() -> None:
    """A retry's prompt holds the recorded ids too, and the engine may have all of it cached."""
    subject = at_work(SaidText("fine"))
    prompt_tokens = len(subject.response.prompt_from(0))
    subject.response.start_turn(1)
    subject.response.end_turn("stop", prompt_tokens + 2)
    subject.response.stop()
    usage = subject.take()[-1]["response"]["usage"]
    assert usage["input_tokens"] == prompt_tokens
    assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]


def test_after_the_terminal_clients_are_told_so() -> None:
    subject = driven(SaidText("fine"))
    cancelled(subject)
    for command in (subject.response.cancel, subject.response.close, subject.append):
        with pytest.raises(ClientFault) as caught:
            command()
        assert (caught.value.code, caught.value.status) == ("response_already_completed", 400)
