from __future__ import annotations

import msgspec
import pytest

from agentloop.drive.event import decode_event
from agentloop.errors import ProtocolError
from agentloop.wire.items import FunctionCall, UnknownItem


def frame(**fields: object) -> bytes:
    return msgspec.json.encode(fields)


def test_a_delta_is_read() -> None:
    event = decode_event(frame(type="response.output_text.delta", output_index=2, delta="hi"))
    assert (event.type, event.output_index, event.delta) == ("response.output_text.delta", 2, "hi")


def test_an_item_is_typed() -> None:
    item = {"type": "function_call", "call_id": "c", "name": "shell", "arguments": "{}", "new": 1}
    event = decode_event(frame(type="response.output_item.done", output_index=0, item=item))
    assert event.item == FunctionCall(call_id="c", name="shell", arguments="{}")


def test_an_item_of_an_unknown_type_is_kept() -> None:
    item = {"type": "hologram", "call_id": 7}
    event = decode_event(frame(type="response.output_item.done", item=item))
    assert isinstance(event.item, UnknownItem)


def test_an_event_without_item_has_none() -> None:
    assert decode_event(frame(type="response.in_progress")).item is None


def test_an_unknown_event_may_have_fields_of_any_shape() -> None:
    event = decode_event(frame(type="codex.rate_limits", delta={"x": 1}, response="none"))
    assert (event.type, event.delta, event.response) == ("codex.rate_limits", "", None)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"[1]",
        b"{",
        b'{"delta":"no type"}',
        frame(type="response.output_text.delta", delta={"x": 1}),
        frame(type="response.done", response={"pending_tool_calls": [{"name": "no id"}]}),
        b'{"type":"response.output_text.delta","delta":"\xff"}',
    ],
)
def test_what_is_no_event_is_refused(bad: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_event(bad)


def test_an_item_that_breaks_its_type_is_refused() -> None:
    event = decode_event(frame(type="response.output_item.done", item={"type": "function_call"}))
    with pytest.raises(ProtocolError, match="item"):
        _ = event.item
