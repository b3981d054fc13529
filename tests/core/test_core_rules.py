"""The append protocol's rules for states and turns (section 2), each test named by its rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentloop.core.records import Ended
from agentloop.core.states import State
from agentloop.tokens.render import SaidReasoning, SaidText
from tests.conformance.heard import NO_USAGE
from tests.core.core_kit import (
    FIRST,
    RESPONSE_ID,
    SECOND,
    Driven,
    answer,
    at_work,
    cancelled,
    driven,
    hosted_answer,
    ids_of,
    lookup,
    message,
    patch,
    sample,
    search,
    shell,
    stop,
    types_of,
)

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
    assert subject.response.calls.find(SECOND) is None
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


@pytest.mark.parametrize("is_reversed", [False, True])
def test_2_4_a_partial_append_stays_suspended_and_the_last_output_resumes(
    is_reversed: bool,
) -> None:
    subject = driven(shell("a"), shell("b"))
    first, last = subject.response.calls.pending()[:: -1 if is_reversed else 1]
    seen = []
    for call in (first, last):
        accepted = subject.append(answer(call))
        seen.append((accepted["pending"], subject.response.state, subject.records[-1].kind))
    assert seen == [
        ([last.call_id], State.SUSPENDED, "appended"),
        ([], State.SAMPLING, "resumed"),
    ]


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
