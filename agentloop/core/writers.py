"""How one output item is said: which events open it, carry it, close it.

A writer lives from its item's first header token to its last. Events leave here without their
sequence number; the transcript numbers them.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from agentloop.core.records import Config
from agentloop.errors import ProtocolError
from agentloop.ids import derive
from agentloop.tokens.frame import CallKind
from agentloop.wire import codec, events
from agentloop.wire.items import (
    AnyItem,
    ContentPart,
    CustomToolCall,
    FunctionCall,
    Message,
    Reasoning,
    ReasoningText,
    TypedItem,
    WebSearchCall,
    output_text,
)

_UNNUMBERED = 0


def _agent(name: str) -> Raw | UnsetType:
    return Raw(codec.encode({"agent_name": name})) if name else UNSET


class Writer(Protocol):
    """Says one item. `done` gets the whole text and whether the item is complete."""

    index: int
    name: str
    call_id: str  # empty for an item that is no call
    kind: CallKind

    def added(self) -> list[events.Numbered]: ...
    def delta(self, text: str) -> list[events.Numbered]: ...
    def done(self, text: str) -> list[events.Numbered]: ...
    def item(self, text: str, status: str) -> AnyItem: ...


class _ItemWriter:
    """What all writers share: the item's id, its index, and its first and last event."""

    prefix: str
    name = ""
    call_id = ""
    kind: CallKind = "function_call"

    def __init__(self, config: Config, index: int) -> None:
        self.index = index
        self.id = derive(self.prefix, config.id, index)
        self._agent = _agent(config.agent_name)

    def item(self, text: str, status: str) -> AnyItem:
        """The item in this status, with this text so far."""
        item = self._item(text, status)
        item.agent = self._agent
        return item

    def _item(self, text: str, status: str) -> TypedItem:
        raise NotImplementedError

    def _item_added(self) -> events.Numbered:
        return events.OutputItemAdded(_UNNUMBERED, self.index, self.item("", "in_progress"))


class MessageWriter(_ItemWriter):
    """A message: one text part."""

    prefix = "msg"

    def __init__(self, config: Config, index: int, phase: str) -> None:
        super().__init__(config, index)
        self._phase = phase

    def added(self) -> list[events.Numbered]:
        part = output_text("")
        return [
            self._item_added(),
            events.ContentPartAdded(_UNNUMBERED, self.id, self.index, 0, part),
        ]

    def delta(self, text: str) -> list[events.Numbered]:
        return [events.OutputTextDelta(_UNNUMBERED, self.id, self.index, 0, text)]

    def done(self, text: str) -> list[events.Numbered]:
        part = output_text(text)
        return [
            events.OutputTextDone(_UNNUMBERED, self.id, self.index, 0, text),
            events.ContentPartDone(_UNNUMBERED, self.id, self.index, 0, part),
        ]

    def _item(self, text: str, status: str) -> Message:
        content: list[ContentPart] = [] if status == "in_progress" else [output_text(text)]
        return Message(
            id=self.id, role="assistant", content=content, status=status, phase=self._phase or None
        )


class ReasoningWriter(_ItemWriter):
    """Reasoning: one text part of its own kind."""

    prefix = "rs"

    def added(self) -> list[events.Numbered]:
        part = ReasoningText()
        return [
            self._item_added(),
            events.ContentPartAdded(_UNNUMBERED, self.id, self.index, 0, part),
        ]

    def delta(self, text: str) -> list[events.Numbered]:
        return [events.ReasoningTextDelta(_UNNUMBERED, self.id, self.index, 0, text)]

    def done(self, text: str) -> list[events.Numbered]:
        part = ReasoningText(text=text)
        return [
            events.ReasoningTextDone(_UNNUMBERED, self.id, self.index, 0, text),
            events.ContentPartDone(_UNNUMBERED, self.id, self.index, 0, part),
        ]

    def _item(self, text: str, status: str) -> Reasoning:
        content = [] if status == "in_progress" else [ReasoningText(text=text)]
        return Reasoning(id=self.id, summary=[], content=content, status=status)


class _CallWriter(_ItemWriter):
    """What call writers share: the call's id and the tool's name."""

    def __init__(self, config: Config, index: int, name: str) -> None:
        super().__init__(config, index)
        self.name = name
        self.call_id = derive("call", config.id, index)

    def added(self) -> list[events.Numbered]:
        return [self._item_added()]


class FunctionCallWriter(_CallWriter):
    """A function call: its arguments as JSON text."""

    prefix = "fc"

    def delta(self, text: str) -> list[events.Numbered]:
        return [events.ArgumentsDelta(_UNNUMBERED, self.id, self.index, text)]

    def done(self, text: str) -> list[events.Numbered]:
        return [events.ArgumentsDone(_UNNUMBERED, self.id, self.index, self.name, text)]

    def _item(self, text: str, status: str) -> FunctionCall:
        namespace, _, name = self.name.rpartition(".")  # a tool's own name holds no dot
        return FunctionCall(
            id=self.id,
            call_id=self.call_id,
            namespace=namespace or None,
            name=name,
            arguments=text,
            status=status,
        )


class CustomCallWriter(_CallWriter):
    """A call of a freeform tool: its input as plain text."""

    prefix = "ctc"
    kind: CallKind = "custom_tool_call"

    def delta(self, text: str) -> list[events.Numbered]:
        return [events.CustomInputDelta(_UNNUMBERED, self.id, self.index, text)]

    def done(self, text: str) -> list[events.Numbered]:
        return [events.CustomInputDone(_UNNUMBERED, self.id, self.index, text)]

    def _item(self, text: str, status: str) -> CustomToolCall:
        return CustomToolCall(
            id=self.id, call_id=self.call_id, name=self.name, input=text, status=status
        )


class WebSearchWriter(_CallWriter):
    """A hosted search: nothing is said of its query before it is whole."""

    prefix = "ws"
    kind: CallKind = "hosted_call"

    def delta(self, text: str) -> list[events.Numbered]:
        return []

    def done(self, text: str) -> list[events.Numbered]:
        return []

    def _item(self, text: str, status: str) -> WebSearchCall:
        return WebSearchCall(id=self.id, action=_search_action(text), status=status)


_action_decoder = msgspec.json.Decoder(dict[str, object])


def _search_action(arguments: str) -> dict[str, object]:
    try:
        action = codec.decode_as(_action_decoder, arguments or "{}", "action")
    except ProtocolError:
        action = {"query": arguments}  # malformed on purpose or by the model: shown as it is
    return {"type": "search", **action}


def writer_for(config: Config, index: int, kind: str, name: str, phase: str) -> Writer:
    """The writer for an item that the parser has opened."""
    if kind == "message":
        return MessageWriter(config, index, phase)
    if kind == "reasoning":
        return ReasoningWriter(config, index)
    if kind == "custom_tool_call":
        return CustomCallWriter(config, index, name)
    if kind == "hosted_call" and name == "web_search":
        return WebSearchWriter(config, index, name)
    return FunctionCallWriter(config, index, name)


def is_cut_call(item: AnyItem) -> bool:
    """Whether this is a call that was cut before it was whole: nobody may run it."""
    calls = FunctionCall | CustomToolCall | WebSearchCall
    return isinstance(item, calls) and item.status == "incomplete"
