"""Admission of items: validate and render. Tool outputs take this path like any other input."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec import Raw

from agentloop.core.calls import Call, unknown_call
from agentloop.core.context import Entry
from agentloop.errors import ProtocolError, UnknownCall
from agentloop.tokens.render import render_items, render_result
from agentloop.wire import codec
from agentloop.wire.items import (
    AnyItem,
    CallItem,
    CustomToolCallOutput,
    FunctionCallOutput,
    FunctionTool,
    Message,
    OutputItem,
    is_model_output,
)

TOOLS_MAX = 1_024
_INPUT_ROLES = ("user", "developer")
_OUTPUTS: dict[str, type[FunctionCallOutput | CustomToolCallOutput]] = {
    "function_call": FunctionCallOutput,
    "custom_tool_call": CustomToolCallOutput,
}

FindCall = Callable[[str], Call | None]


def admit_tools(raw_tools: list[Raw]) -> tuple[FunctionTool | Raw, ...]:
    """The tools of a create: function tools typed, all others as they came.

    Raises:
        ProtocolError: a function tool without a name or with a wrong field; too many tools.
    """
    if len(raw_tools) > TOOLS_MAX:
        raise ProtocolError(f"at most {TOOLS_MAX} tools, got {len(raw_tools)}", param="tools")
    return tuple(codec.decode_tool(raw, f"tools[{i}]") for i, raw in enumerate(raw_tools))


def admit_history(raw: Raw) -> list[Entry]:
    """The input of a create: a history of any items, rendered together.

    Raises:
        ProtocolError, UnknownCall: an item is wrong, or an output has no call before it.
    """
    items = codec.decode_items(raw)
    if not items:
        return []
    _check_order(items)
    rendered = render_items(items)
    first = Entry(items[0], rendered)  # rendering is of the whole: its ids stand with the first
    return [first, *(Entry(item, rendered[:0]) for item in items[1:])]


def _check_order(items: list[AnyItem]) -> None:
    announced: set[str] = set()
    for position, item in enumerate(items):
        if isinstance(item, CallItem):
            announced.add(item.call_id)
        elif isinstance(item, OutputItem) and item.call_id not in announced:
            raise UnknownCall(
                f"no call {item.call_id!r} stands before its output",
                param=f"input[{position}].call_id",
            )


def admit_input(raw: Raw, find: FindCall) -> list[tuple[int, Entry]]:
    """The input of an append: outputs and messages with their position; echoes are dropped.

    Args:
        find: an announced call by its id.

    Raises:
        ProtocolError: an item that an append cannot hold; `param` names it.
        UnknownCall: an output names no announced call.
    """
    admitted: list[tuple[int, Entry]] = []
    for position, item in enumerate(codec.decode_items(raw)):
        if not is_model_output(item):  # some clients send the model's own output again
            admitted.append((position, _admit_item(item, position, find)))
    return admitted


def _admit_item(item: AnyItem, position: int, find: FindCall) -> Entry:
    if isinstance(item, OutputItem):
        return _admit_output(item, position, find)
    if isinstance(item, Message) and item.role in _INPUT_ROLES:
        return Entry(item, render_items([item]))
    raise ProtocolError(
        "an append takes tool outputs and messages of role user or developer",
        param=f"input[{position}]",
    )


def _admit_output(item: OutputItem, position: int, find: FindCall) -> Entry:
    call = find(item.call_id)
    if call is None:
        raise unknown_call(item.call_id, position)
    if call.has_output_item and not isinstance(item, _OUTPUTS[call.kind]):
        raise ProtocolError(
            f"call {item.call_id} is a {call.kind}; answer it with a {call.kind}_output",
            param=f"input[{position}].type",
        )
    return Entry(item, render_items([item], {item.call_id: call.name}))


def admit_result(call: Call, text: str) -> Entry:
    """A call's output that the server itself gives; a hosted kind's result is no item."""
    if not call.has_output_item:
        return Entry(None, render_result(text))
    item = _OUTPUTS[call.kind](call_id=call.call_id, output=text)
    return Entry(item, render_items([item], {call.call_id: call.name}))


def fingerprint(raw: Raw) -> bytes:
    """Equal for payloads that say the same, however they are written.

    Raises:
        ProtocolError: it is not JSON.
    """
    payload = codec.decode_as(_any_decoder, raw, "input")
    return blake2b(codec.canonical(payload), digest_size=16).digest()


_any_decoder = msgspec.json.Decoder(object)
