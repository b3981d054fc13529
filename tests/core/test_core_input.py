"""The append protocol's rules for input, numbers, usage and output (sections 3 and 7)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentloop.core.records import Sampled
from agentloop.errors import AgentLoopError, ClientFault, KeyConflict, StateConflict, UnknownCall
from agentloop.tokens.render import SaidReasoning, SaidText
from tests.conformance.heard import NO_USAGE
from tests.core.core_kit import (
    FIRST,
    RESPONSE_ID,
    SECOND,
    answer,
    at_work,
    cancelled,
    driven,
    freeze,
    lookup,
    message,
    nothing,
    output,
    patch,
    search,
    shell,
)

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
    subject.response.close(nothing)
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
    for command in (
        subject.response.cancel,
        lambda: subject.response.close(nothing),
        subject.append,
    ):
        with pytest.raises(ClientFault) as caught:
            command()
        assert (caught.value.code, caught.value.status) == ("response_already_completed", 400)
