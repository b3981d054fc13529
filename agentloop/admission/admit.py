"""Admission of items: validate and render. Tool outputs take this path like any other input."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec import Raw

from agentloop.core.calls import unknown_call
from agentloop.core.context import Entry
from agentloop.errors import ProtocolError
from agentloop.tokens.render import render_items
from agentloop.wire import codec
from agentloop.wire.items import (
    AnyItem,
    FunctionCallOutput,
    FunctionTool,
    Message,
    OutputItem,
    is_model_output,
)

TOOLS_MAX = 1_024
_INPUT_ROLES = ("user", "developer")

NameOf = Callable[[str], str | None]


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
    rendered = render_items(items)
    first = Entry(items[0], rendered)  # rendering is of the whole: its ids stand with the first
    return [first, *(Entry(item, rendered[:0]) for item in items[1:])]


def admit_input(raw: Raw, name_of: NameOf) -> list[tuple[int, Entry]]:
    """The input of an append: outputs and messages with their position; echoes are dropped.

    Args:
        name_of: the tool that an announced call named, None for an unknown call.

    Raises:
        ProtocolError: an item that an append cannot hold; `param` names it.
        UnknownCall: an output names no announced call.
    """
    admitted: list[tuple[int, Entry]] = []
    for position, item in enumerate(codec.decode_items(raw)):
        if not _is_echo(item):
            admitted.append((position, _admit_item(item, position, name_of)))
    return admitted


def _is_echo(item: AnyItem) -> bool:
    """Some clients send the model's own output again with each append."""
    return is_model_output(item)


def _admit_item(item: AnyItem, position: int, name_of: NameOf) -> Entry:
    if isinstance(item, OutputItem):
        name = name_of(item.call_id)
        if name is None:
            raise unknown_call(item.call_id, position)
        return Entry(item, render_items([item], {item.call_id: name}))
    if isinstance(item, Message) and item.role in _INPUT_ROLES:
        return Entry(item, render_items([item]))
    raise ProtocolError(
        "an append takes tool outputs and messages of role user or developer",
        param=f"input[{position}]",
    )


def render_output(call_id: str, name: str, text: str) -> Entry:
    """A function call's output that the server itself gives."""
    item = FunctionCallOutput(call_id=call_id, output=text)
    return Entry(item, render_items([item], {call_id: name}))


def fingerprint(raw: Raw) -> bytes:
    """Equal for payloads that say the same, however they are written.

    Raises:
        ProtocolError: it is not JSON.
    """
    payload = codec.decode_as(_any_decoder, raw, "input")
    return blake2b(codec.canonical(payload), digest_size=16).digest()


_any_decoder = msgspec.json.Decoder(object)
