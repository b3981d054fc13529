"""Bytes to messages and back. Every way a decode can fail leaves here as one `ProtocolError`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Raw, Struct, UnsetType

from agentloop.errors import ProtocolError
from agentloop.wire.items import (
    AnyItem,
    ContentPart,
    FunctionTool,
    Message,
    OutputItem,
    TypedItem,
    UnknownItem,
)
from agentloop.wire.requests import ClientMessage

T = TypeVar("T")

# RecursionError: nesting beyond the C stack. ValueError: integers beyond Python's digit limit,
# lone surrogates. UnicodeDecodeError is a ValueError.
_MISSING = re.compile(r"missing required field `(.+)`")
_DECODE_FAILURES = (msgspec.MsgspecError, RecursionError, ValueError)


class Envelope(Struct):
    """What can be told of any frame: its type and the ids that an error echoes."""

    type: str = ""
    event_id: Any = None
    response_id: Any = None
    stream_id: Any = None


class _ItemEnvelope(Struct):
    type: str = "message"


_message_decoder = msgspec.json.Decoder(ClientMessage)
_envelope_decoder = msgspec.json.Decoder(Envelope)
_items_decoder = msgspec.json.Decoder(str | list[TypedItem])
_raw_items_decoder = msgspec.json.Decoder(str | list[Raw])
_item_envelope_decoder = msgspec.json.Decoder(_ItemEnvelope)
_function_tool_decoder = msgspec.json.Decoder(FunctionTool)
_encoder = msgspec.json.Encoder()
_canonical_encoder = msgspec.json.Encoder(order="sorted")

_ITEM_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    item_type.__struct_config__.tag: msgspec.json.Decoder(item_type)
    for item_type in TypedItem.__args__
}
MESSAGE_TYPES = frozenset(t.__struct_config__.tag for t in ClientMessage.__args__)

encode = _encoder.encode
"""Any Struct, event or item to JSON bytes."""

canonical = _canonical_encoder.encode
"""JSON bytes with sorted keys and no white space: the form that is hashed and compared."""


def decode_message(frame: bytes) -> ClientMessage:
    """One client message.

    Raises:
        ProtocolError: not one JSON object of a known type, or a field of the wrong type; `param`
            names the field. Code `unsupported_message` where only the type is unknown.
    """
    check_utf8(frame)  # raw fields are not looked into here, but they are said again later
    try:
        return _message_decoder.decode(frame)
    except _DECODE_FAILURES as failure:
        _refuse_message(frame, failure)


def _refuse_message(frame: bytes, failure: Exception) -> NoReturn:
    message_type = envelope(frame).type
    if message_type and message_type not in MESSAGE_TYPES:
        known = ", ".join(sorted(MESSAGE_TYPES))
        raise ProtocolError(
            f"unknown message type {message_type[:80]!r}; known types: {known}",
            code="unsupported_message",
            param="type",
        ) from failure
    raise as_protocol_error(failure) from failure


def envelope(frame: bytes) -> Envelope:
    """What can be told of a frame that does not decode: its type and the ids an error echoes."""
    try:
        found = _envelope_decoder.decode(frame)
    except _DECODE_FAILURES:
        return Envelope()
    for name in ("event_id", "response_id", "stream_id"):
        if not isinstance(getattr(found, name), str):
            setattr(found, name, None)
    return found


def decode_items(raw: Raw, param: str = "input") -> list[AnyItem]:
    """The items of an `input` field: a string is one user message.

    The typed decoder takes the whole list at once; real clients leave out `type` and send types
    that nobody told us of, so where it fails each item is looked at by itself.

    Raises:
        ProtocolError: an item of a known type has a wrong field; `param` is `input[i]`.
    """
    try:
        items = _items_decoder.decode(raw)
    except _DECODE_FAILURES:
        return _let_go(_decode_each(raw, param))
    if isinstance(items, str):
        return [Message(role="user", content=items)]
    return _let_go(list(items))


def _let_go(items: list[AnyItem]) -> list[AnyItem]:
    """Copy the small raw fields: each would keep the whole frame alive."""
    for item in items:
        if not isinstance(item, UnknownItem) and isinstance(item.agent, Raw):
            item.agent = item.agent.copy()
        for part in _parts_of(item):
            part.annotations, part.logprobs = _copied(part.annotations), _copied(part.logprobs)
    return items


def _parts_of(item: AnyItem) -> Sequence[ContentPart]:
    if isinstance(item, Message):
        return () if isinstance(item.content, str) else item.content
    if isinstance(item, OutputItem):
        return () if isinstance(item.output, str) else item.output
    return ()


def _copied(raw: Raw | UnsetType) -> Raw | UnsetType:
    return raw.copy() if isinstance(raw, Raw) else raw


def _decode_each(raw: Raw, param: str) -> list[AnyItem]:
    raws = decode_as(_raw_items_decoder, raw, param)
    assert not isinstance(raws, str), "a string decodes at the first try"
    return [_decode_item(item, f"{param}[{index}]") for index, item in enumerate(raws)]


def _decode_item(raw: Raw, param: str) -> AnyItem:
    item_type = decode_as(_item_envelope_decoder, raw, param).type
    decoder = _ITEM_DECODERS.get(item_type)
    if decoder is None:
        return UnknownItem(item_type, raw.copy())
    try:
        return decoder.decode(raw)  # type: ignore[no-any-return]
    except _DECODE_FAILURES as failure:
        raise as_protocol_error(failure, param) from failure


def decode_tool(raw: Raw, param: str) -> FunctionTool | Raw:
    """A tool definition: a function tool typed, any other kind as it came.

    Raises:
        ProtocolError: a function tool without a name, or with a field of the wrong type.
    """
    if decode_as(_item_envelope_decoder, raw, param).type != "function":
        return raw.copy()
    return decode_as(_function_tool_decoder, raw, param)


def decode_as(decoder: msgspec.json.Decoder[T], data: bytes | Raw | str, name: str) -> T:
    """Decode with any decoder.

    Raises:
        ProtocolError: it does not fit; the message and `param` say where.
    """
    try:
        return decoder.decode(data)
    except _DECODE_FAILURES as failure:
        raise as_protocol_error(failure, name) from failure


def check_utf8(frame: bytes) -> None:
    """Raises ProtocolError unless the bytes are valid UTF-8."""
    if not frame.isascii():
        try:
            frame.decode()
        except UnicodeDecodeError as failure:
            raise as_protocol_error(failure) from failure


def as_protocol_error(failure: Exception, name: str = "") -> ProtocolError:
    """The one typed error for any decode failure; `name` is the thing's path, empty for a frame."""
    text, _, path = str(failure).partition(" - at `$")
    path = path.rstrip("`")
    if isinstance(failure, RecursionError):
        text = "nested too deeply"
    elif missing := _MISSING.search(text):
        path += "." + missing[1]
    param = (name + path).lstrip(".")
    return ProtocolError(f"{param or 'the frame'}: {text}", param=param or None)


def with_stream_id(frames: Sequence[bytes], stream_id: str) -> list[bytes]:
    """The same events, named for a lane. The name is added when sent and never stored."""
    tail = b',"stream_id":' + encode(stream_id) + b"}"
    return [frame[:-1] + tail for frame in frames]


def is_json(frame: bytes) -> bool:
    """Whether these bytes are one JSON value."""
    try:
        msgspec.json.decode(frame)
    except _DECODE_FAILURES:
        return False
    return True
