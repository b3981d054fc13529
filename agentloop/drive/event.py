"""Server events as a client needs them: one loose shape, whatever the server adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from agentloop.errors import ProtocolError
from agentloop.wire import codec
from agentloop.wire.events import PendingCall, Usage

if TYPE_CHECKING:
    from agentloop.wire.items import AnyItem

ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
CREATED = "response.created"
DONE = "response.done"
TEXT_DELTA = "response.output_text.delta"
REASONING_DELTAS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
TERMINALS = ("response.completed", "response.incomplete", "response.failed")

_READ = {ITEM_ADDED, ITEM_DONE, CREATED, DONE, TEXT_DELTA, *REASONING_DELTAS, *TERMINALS, "error"}


class ErrorShown(Struct, frozen=True):
    """The fault in an error frame, or the one that ended a Response."""

    message: str = ""
    code: str | None = None
    param: str | None = None


class IncompleteShown(Struct, frozen=True):
    """Why a Response ended early."""

    reason: str = ""


class ResponseShown(Struct, frozen=True, kw_only=True):
    """The Response as far as a client looks into it."""

    id: str = ""
    status: str = ""
    state: str = ""
    usage: Usage | None = None
    usage_total: Usage | None = None
    error: ErrorShown | None = None
    incomplete_details: IncompleteShown | None = None
    pending_tool_calls: list[PendingCall] = []


class ServerEvent(Struct, kw_only=True):
    """One event. Fields that its type does not have hold their default.

    Attributes:
        type: the wire's name; events of a type not read here carry nothing else.
        output_index: −1 where the event belongs to no output item.
        item: of `response.output_item.added` and `.done`.
    """

    type: str
    output_index: int = -1
    delta: str = ""
    raw_item: Raw | UnsetType = msgspec.field(default=UNSET, name="item")
    response: ResponseShown | None = None
    error: ErrorShown | None = None
    status: int | None = None

    @property
    def item(self) -> AnyItem | None:
        if isinstance(self.raw_item, UnsetType):
            return None
        return codec.decode_items(Raw(b"[%b]" % bytes(self.raw_item)), "item")[0]


_decoder = msgspec.json.Decoder(ServerEvent)


def decode_event(frame: bytes) -> ServerEvent:
    """One server event; a type that is not read here may have fields of any shape.

    Raises:
        ProtocolError: the frame is no event, or a field that is read has the wrong type.
    """
    try:
        return codec.decode_as(_decoder, frame, "event")
    except ProtocolError:
        event_type = codec.envelope(frame).type
        if not event_type or event_type in _READ:
            raise
        return ServerEvent(type=event_type)
