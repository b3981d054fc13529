"""Wire items: what a conversation is made of.

Field names are the wire's own. Everything that only some clients send has a default; unknown
fields are ignored on the way in. Encoding leaves out fields that hold their default.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType


class ContentPart(Struct, gc=False):
    """A part of a message's or an output's content, of any `type` (`input_text`, `output_text`,
    `refusal`, `input_image`, ...). Only text is rendered; other kinds become a placeholder."""

    type: str = "input_text"
    text: str | UnsetType = UNSET
    annotations: Raw | UnsetType = UNSET
    logprobs: Raw | UnsetType = UNSET


Content = str | list[ContentPart]
_NONE = Raw(b"[]")


class Item(Struct, tag_field="type", omit_defaults=True, kw_only=True):
    """Base of all items. `agent` names who said it, where a Response may hold several agents."""

    id: str | None = None
    agent: Raw | UnsetType = UNSET


class Message(Item, tag="message"):
    """A message of any role. `phase` marks an assistant message: `commentary` or `final_answer`."""

    role: str
    content: Content
    status: str | None = None
    phase: str | None = None


class FunctionCall(Item, tag="function_call"):
    """A call of a function tool; `arguments` is JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    status: str | None = None


class FunctionCallOutput(Item, tag="function_call_output"):
    """What a function tool answered."""

    call_id: str
    output: Content
    status: str | None = None


class CustomToolCall(Item, tag="custom_tool_call"):
    """A call of a freeform tool; `input` is plain text."""

    call_id: str
    name: str
    input: str
    status: str | None = None


class CustomToolCallOutput(Item, tag="custom_tool_call_output"):
    """What a freeform tool answered."""

    call_id: str
    output: Content
    status: str | None = None


class ReasoningText(Struct, gc=False):
    """A part of reasoning: `reasoning_text` in content, `summary_text` in a summary."""

    type: str = "reasoning_text"
    text: str = ""


class Reasoning(Item, tag="reasoning"):
    """Reasoning. `encrypted_content` carries sealed ids for clients that keep no state here."""

    summary: list[ReasoningText] | UnsetType = UNSET
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: str | None = None


class WebSearchCall(Item, tag="web_search_call"):
    """A hosted web search. `encrypted_content` carries its sealed result."""

    action: dict[str, Any] = {}
    status: str | None = None
    encrypted_content: str | None = None


class ItemReference(Item, tag="item_reference"):
    """Stands for an item that the server stored under this id."""


class Compaction(Item, tag="compaction"):
    """A compacted stretch of history, sealed."""

    encrypted_content: str = ""


class UnknownItem(Struct):
    """An item of a type this server does not know, kept as it came."""

    type: str
    raw: Raw


TypedItem = (
    Message
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | Reasoning
    | WebSearchCall
    | ItemReference
    | Compaction
)
AnyItem = TypedItem | UnknownItem
CallItem = FunctionCall | CustomToolCall
OutputItem = FunctionCallOutput | CustomToolCallOutput


def text_of(content: Content) -> str:
    """The text of a content: its string, or its parts' texts joined; other kinds show as a mark."""
    if isinstance(content, str):
        return content
    return "".join(f"[{p.type}]" if isinstance(p.text, UnsetType) else p.text for p in content)


def output_text(text: str) -> ContentPart:
    """The text part that the server itself writes."""
    return ContentPart("output_text", text, annotations=_NONE, logprobs=_NONE)


def is_model_output(item: AnyItem) -> bool:
    """Whether the model (not the user or a tool) produced this item."""
    if isinstance(item, Message):
        return item.role == "assistant"
    if isinstance(item, UnknownItem):
        return item.type.endswith("_call")
    return isinstance(item, FunctionCall | CustomToolCall | Reasoning | WebSearchCall)


class FunctionTool(Struct, tag_field="type", tag="function", omit_defaults=True):
    """A function tool's definition."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | UnsetType | None = UNSET
