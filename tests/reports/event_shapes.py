"""What a strict client demands of each event: required fields, by the event's type."""

from __future__ import annotations

import re
from typing import Any

from tests.conformance.heard import TERMINALS, Event

# A shape is a type, a pattern of a string, a list of one shape, a dict of required fields, or a
# function that gives the shape of a value.
TOKENS = {"input_tokens": int, "output_tokens": int, "total_tokens": int}
USAGE = {
    **TOKENS,
    "input_tokens_details": {"cached_tokens": int},
    "output_tokens_details": {"reasoning_tokens": int},
}
STATUS = re.compile("in_progress|completed|incomplete")
OUTPUT_TEXT = {"type": re.compile("output_text"), "text": str, "annotations": [dict]}
REASONING_TEXT = {"type": re.compile("reasoning_text"), "text": str}
CALL_ID = re.compile(r"call_\w+")
ITEMS: dict[str, Any] = {
    "message": {
        "id": re.compile(r"msg_\w+"), "role": re.compile("assistant"), "content": [OUTPUT_TEXT],
    },
    "reasoning": {"id": re.compile(r"rs_\w+"), "summary": [dict]},
    "function_call": {
        "id": re.compile(r"fc_\w+"), "call_id": CALL_ID, "name": str, "arguments": str,
    },
    "custom_tool_call": {
        "id": re.compile(r"ctc_\w+"), "call_id": CALL_ID, "name": str, "input": str,
    },
    "web_search_call": {"id": re.compile(r"ws_\w+"), "action": dict},
}  # fmt: skip


def item_shape(item: Event) -> Any:
    return {"status": STATUS, **ITEMS[item["type"]]}


def part_shape(part: Event) -> Any:
    return OUTPUT_TEXT if part["type"] == "output_text" else REASONING_TEXT


RESPONSE = {
    "id": re.compile(r"resp_\w+"), "object": re.compile("response"), "created_at": int,
    "status": str, "model": str, "output": [item_shape], "parallel_tool_calls": bool,
    "tools": [dict], "metadata": dict,
}  # fmt: skip
PAUSED = {
    "id": re.compile(r"resp_\w+"), "object": re.compile("response"),
    "status": re.compile("in_progress"), "state": re.compile("suspended|idle|sampling"),
    "output": [item_shape], "usage": USAGE, "usage_total": USAGE,
    "pending_tool_calls": [{"call_id": CALL_ID, "name": str}],
}  # fmt: skip
ENDED = {**RESPONSE, "usage": USAGE, "usage_total": USAGE}
ITEM = {"output_index": int, "item": item_shape}
OF_ITEM = {"item_id": re.compile(r"[a-z]+_\w+"), "output_index": int}
PART = {**OF_ITEM, "content_index": int, "part": part_shape}
TEXT = {**OF_ITEM, "content_index": int}
EVENTS: dict[str, Any] = {
    "response.created": {"response": RESPONSE},
    "response.in_progress": {"response": RESPONSE},
    "response.output_item.added": ITEM,
    "response.output_item.done": ITEM,
    "response.content_part.added": PART,
    "response.content_part.done": PART,
    "response.output_text.delta": {**TEXT, "delta": re.compile("(?s).+"), "logprobs": [dict]},
    "response.output_text.done": {**TEXT, "text": str, "logprobs": [dict]},
    "response.reasoning_text.delta": {**TEXT, "delta": re.compile("(?s).+")},
    "response.reasoning_text.done": {**TEXT, "text": str},
    "response.function_call_arguments.delta": {**OF_ITEM, "delta": re.compile("(?s).+")},
    "response.function_call_arguments.done": {**OF_ITEM, "name": str, "arguments": str},
    "response.custom_tool_call_input.delta": {**OF_ITEM, "delta": re.compile("(?s).+")},
    "response.custom_tool_call_input.done": {**OF_ITEM, "input": str},
    "response.append.accepted": {"response_id": re.compile(r"resp_\w+"), "pending": [CALL_ID]},
    "response.done": {"response": PAUSED},
    **{terminal: {"response": ENDED} for terminal in TERMINALS},
}


def check_event(event: Event) -> None:
    """An event of a known type, with every field that such an event has."""
    shape = {"sequence_number": int, **EVENTS[event["type"]]}
    check_shape(event, shape, event["type"])


def check_shape(value: Any, shape: Any, path: str) -> None:
    """The value has the shape; `path` says where it stands."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), path
        for name, inner in shape.items():
            assert name in value, f"{path} lacks {name}"
            check_shape(value[name], inner, f"{path}.{name}")
    elif isinstance(shape, list):
        assert isinstance(value, list), path
        for index, each in enumerate(value):
            check_shape(each, shape[0], f"{path}[{index}]")
    elif isinstance(shape, re.Pattern):
        assert isinstance(value, str), path
        assert shape.fullmatch(value), f"{path} is {value!r}"
    elif isinstance(shape, type):
        assert type(value) is shape, f"{path} is {value!r}"
    else:
        check_shape(value, shape(value), path)
