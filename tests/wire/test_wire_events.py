"""The events' shapes, field by field, against the documented table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentloop.wire import codec, events
from agentloop.wire.items import FunctionCall, Message, ReasoningText, output_text

ITEM = FunctionCall(id="fc_1", call_id="call_1", name="n", arguments="", status="in_progress")
TOLD_ITEM = msgspec.to_builtins(ITEM)
TEXT = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
RESPONSE = events.ResponseObject(id="resp_1", created_at=1, status="in_progress", model="m")

RESPONSE_FIELDS = {
    "id", "object", "created_at", "completed_at", "status", "background", "error",
    "incomplete_details", "instructions", "model", "output", "parallel_tool_calls",
    "previous_response_id", "reasoning", "store", "temperature", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "text", "tool_choice", "tools", "truncation", "usage",
    "max_output_tokens", "max_tool_calls", "service_tier", "metadata", "safety_identifier",
    "prompt_cache_key",
}  # fmt: skip

SHAPES: list[tuple[events.Numbered, dict[str, Any]]] = [
    (
        events.OutputItemAdded(3, 1, ITEM),
        {"type": "response.output_item.added", "output_index": 1, "item": TOLD_ITEM},
    ),
    (
        events.OutputItemDone(3, 1, ITEM),
        {"type": "response.output_item.done", "output_index": 1, "item": TOLD_ITEM},
    ),
    (
        events.ContentPartAdded(3, "msg_1", 1, 0, output_text("")),
        {
            "type": "response.content_part.added", "item_id": "msg_1", "output_index": 1,
            "content_index": 0, "part": TEXT,
        },
    ),
    (
        events.ContentPartDone(3, "rs_1", 1, 0, ReasoningText(text="t")),
        {
            "type": "response.content_part.done", "item_id": "rs_1", "output_index": 1,
            "content_index": 0, "part": {"type": "reasoning_text", "text": "t"},
        },
    ),
    (
        events.OutputTextDelta(3, "msg_1", 1, 0, "d"),
        {
            "type": "response.output_text.delta", "item_id": "msg_1", "output_index": 1,
            "content_index": 0, "delta": "d", "logprobs": [],
        },
    ),
    (
        events.OutputTextDone(3, "msg_1", 1, 0, "t"),
        {
            "type": "response.output_text.done", "item_id": "msg_1", "output_index": 1,
            "content_index": 0, "text": "t", "logprobs": [],
        },
    ),
    (
        events.ReasoningTextDelta(3, "rs_1", 1, 0, "d"),
        {
            "type": "response.reasoning_text.delta", "item_id": "rs_1", "output_index": 1,
            "content_index": 0, "delta": "d",
        },
    ),
    (
        events.ReasoningTextDone(3, "rs_1", 1, 0, "t"),
        {
            "type": "response.reasoning_text.done", "item_id": "rs_1", "output_index": 1,
            "content_index": 0, "text": "t",
        },
    ),
    (
        events.ArgumentsDelta(3, "fc_1", 1, "d"),
        {
            "type": "response.function_call_arguments.delta", "item_id": "fc_1",
            "output_index": 1, "delta": "d",
        },
    ),
    (
        events.ArgumentsDone(3, "fc_1", 1, "n", "{}"),
        {
            "type": "response.function_call_arguments.done", "item_id": "fc_1",
            "output_index": 1, "name": "n", "arguments": "{}",
        },
    ),
    (
        events.CustomInputDelta(3, "ctc_1", 1, "d"),
        {
            "type": "response.custom_tool_call_input.delta", "item_id": "ctc_1",
            "output_index": 1, "delta": "d",
        },
    ),
    (
        events.CustomInputDone(3, "ctc_1", 1, "i"),
        {
            "type": "response.custom_tool_call_input.done", "item_id": "ctc_1",
            "output_index": 1, "input": "i",
        },
    ),
    (
        events.AppendAccepted(3, "resp_1", None, ["call_1"]),
        {
            "type": "response.append.accepted", "response_id": "resp_1", "event_id": None,
            "pending": ["call_1"],
        },
    ),
    (
        events.InjectCreated(3, "resp_1", "event_1", []),
        {
            "type": "response.inject.created", "response_id": "resp_1", "event_id": "event_1",
            "pending": [],
        },
    ),
]  # fmt: skip


def encoded(event: Any) -> dict[str, Any]:
    """The event as a client reads it."""
    decoded: dict[str, Any] = msgspec.json.decode(codec.encode(event))
    return decoded


@pytest.mark.parametrize(("event", "shape"), SHAPES, ids=lambda case: type(case).__name__)
def test_event(event: events.Numbered, shape: dict[str, Any]) -> None:
    assert encoded(event) == {"sequence_number": 3, **shape}


@pytest.mark.parametrize(
    ("event_type", "name"),
    [
        (events.ResponseCreated, "response.created"),
        (events.ResponseInProgress, "response.in_progress"),
        (events.ResponseCompleted, "response.completed"),
        (events.ResponseIncomplete, "response.incomplete"),
        (events.ResponseFailed, "response.failed"),
    ],
)
def test_event_that_carries_the_response(event_type: type[Any], name: str) -> None:
    told = encoded(event_type(0, RESPONSE))
    assert told.keys() == {"type", "sequence_number", "response"}
    assert told["type"] == name
    assert told["response"].keys() >= RESPONSE_FIELDS
    assert told["response"].keys() - RESPONSE_FIELDS == {"usage_total", "unconsumed_input"}
    assert told["response"]["text"] == {"format": {"type": "text"}}


def test_type_and_number_come_first() -> None:
    """Some clients peek at a frame's beginning to tell its type."""
    frame = codec.encode(events.OutputItemDone(7, 0, ITEM))
    assert frame.startswith(b'{"type":"response.output_item.done","sequence_number":7,')


def test_every_numbered_event_has_its_shape_here() -> None:
    def leaves(kind: type[Any]) -> set[type[Any]]:
        below = kind.__subclasses__()
        return set().union(*map(leaves, below)) if below else {kind}

    shown = {type(event) for event, _ in SHAPES} | leaves(events.Terminal)
    assert leaves(events.Numbered) - shown == {
        events.ResponseCreated,
        events.ResponseInProgress,
        events.ResponseDone,
    }


def test_done_event() -> None:
    usage = events.Usage(1, events.InputDetails(), 2, events.OutputDetails(), 3)
    paused = events.PausedResponse(
        id="resp_1",
        state="suspended",
        output=[Message(id="msg_1", role="assistant", content=[output_text("")])],
        usage=usage,
        usage_total=usage,
        pending_tool_calls=[events.PendingCall("call_1", "n")],
    )
    told = encoded(events.ResponseDone(9, paused))
    assert (
        told["response"].pop("usage")
        == told["response"].pop("usage_total")
        == {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 3,
        }
    )
    assert told == {
        "type": "response.done",
        "sequence_number": 9,
        "response": {
            "id": "resp_1",
            "object": "response",
            "status": "in_progress",
            "state": "suspended",
            "output": [
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "content": [TEXT],
                }
            ],
            "pending_tool_calls": [{"call_id": "call_1", "name": "n"}],
        },
    }


def test_attached_tells_what_may_have_run() -> None:
    pending = [events.PendingCall("call_1", "n", "{}", False)]
    told = encoded(events.Attached("resp_1", "suspended", 2, 42, pending, ["k"]))
    assert told == {
        "type": "response.attached",
        "response_id": "resp_1",
        "state": "suspended",
        "attach_epoch": 2,
        "next_seq": 42,
        "pending_tool_calls": [
            {"call_id": "call_1", "name": "n", "arguments": "{}", "maybe_executed": False}
        ],
        "known_keys": ["k"],
    }


@pytest.mark.parametrize("ids", [{}, {"event_id": "e", "response_id": "r", "stream_id": "s"}])
def test_error_event_is_unnumbered_and_echoes_ids(ids: dict[str, str]) -> None:
    body = events.ErrorBody("invalid_request_error", "call_not_found", "no call", None)
    assert encoded(events.ErrorEvent(status=400, error=body, **ids)) == {
        "type": "error",
        "status": 400,
        "error": {
            "type": "invalid_request_error",
            "code": "call_not_found",
            "message": "no call",
            "param": None,
        },
        **ids,
    }
