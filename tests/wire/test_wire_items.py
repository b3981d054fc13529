"""Items as clients really send them: without `type`, of unknown types, with unknown fields."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from agentloop.errors import ProtocolError
from agentloop.wire import codec
from agentloop.wire.items import (
    AnyItem,
    Compaction,
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    ItemReference,
    Message,
    Reasoning,
    UnknownItem,
    WebSearchCall,
    is_model_output,
    output_text,
    text_of,
)

RIGHT: list[tuple[bytes, AnyItem]] = [
    (b'{"role":"user","content":"hi"}', Message(role="user", content="hi")),
    (
        b'{"type":"message","role":"developer","content":[{"type":"input_text","text":"hi"}]}',
        Message(role="developer", content=[ContentPart("input_text", "hi")]),
    ),
    (
        b'{"type":"function_call_output","call_id":"c","output":"o"}',
        FunctionCallOutput(call_id="c", output="o"),
    ),
    (
        b'{"type":"custom_tool_call_output","call_id":"c","output":"o"}',
        CustomToolCallOutput(call_id="c", output="o"),
    ),
    (
        b'{"type":"function_call","call_id":"c","name":"n","arguments":"{}","namespace":"s"}',
        FunctionCall(call_id="c", name="n", arguments="{}", namespace="s"),
    ),
    (
        b'{"type":"custom_tool_call","id":"ctc_1","call_id":"c","name":"n","input":"i"}',
        CustomToolCall(id="ctc_1", call_id="c", name="n", input="i"),
    ),
    (b'{"type":"reasoning","encrypted_content":null}', Reasoning()),
    (b'{"type":"web_search_call","status":"completed"}', WebSearchCall(status="completed")),
    (b'{"type":"item_reference","id":"msg_1"}', ItemReference(id="msg_1")),
    (b'{"type":"compaction","encrypted_content":"x"}', Compaction(encrypted_content="x")),
    (
        b'{"type":"message","role":"user","content":"hi","shiny":{"new":1},"phase":null}',
        Message(role="user", content="hi"),
    ),
]


@pytest.mark.parametrize(("raw", "item"), RIGHT)
def test_item(raw: bytes, item: AnyItem) -> None:
    assert codec.decode_items(Raw(b"[" + raw + b"]")) == [item]


def test_a_string_is_one_user_message() -> None:
    assert codec.decode_items(Raw(b'"go \\u00e4"')) == [Message(role="user", content="go ä")]


def test_no_items() -> None:
    assert codec.decode_items(Raw(b"[]")) == []


def test_unknown_item_is_kept_byte_for_byte() -> None:
    raw = b'{ "type":"shiny_call",  "n": 1.0e0, "t": "\\u00e4\xc3\xa4" , "type2":null}'
    typed = b'{"role":"user","content":"hi"}'
    items = codec.decode_items(Raw(b"[" + typed + b" , " + raw + b"\n]"))
    assert items[0] == Message(role="user", content="hi")
    assert isinstance(items[1], UnknownItem)
    assert items[1].type == "shiny_call"
    assert bytes(items[1].raw) == raw


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"null", "input"),
        (b"7", "input"),
        (b"{}", "input"),
        (b'"\\ud800"', "input"),
        (b'[{"role":"user","content":"hi"},null]', "input[1]"),
        (b'["hi"]', "input[0]"),
        (b'[{"type":5}]', "input[0].type"),
        (b'[{"type":null}]', "input[0].type"),
        (b'[{"type":"message","role":7,"content":"hi"}]', "input[0].role"),
        (
            b'[{"role":"user","content":[{"type":"input_text","text":7}]}]',
            "input[0].content[0].text",
        ),
        (b'[{"type":"x"},{"type":"function_call_output","call_id":1,"output":""}]',
         "input[1].call_id"),
        (b'[{"type":"function_call_output","call_id":"c","output":{}}]', "input[0].output"),
        (b'[{"role":"user","content":"\\udc00"}]', "input"),
        (b'[{"role":"user"}]', "input[0].content"),
        (b'[{"type":"function_call_output","output":"o"}]', "input[0].call_id"),
        (b'[{"type":"function_call","call_id":"c","name":"n"}]', "input[0].arguments"),
    ],
)  # fmt: skip
def test_wrong_item_is_named(raw: bytes, param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.decode_items(Raw(raw))
    assert (caught.value.code, caught.value.param) == ("invalid_input", param)


def test_the_field_is_named_as_the_caller_calls_it() -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.decode_items(Raw(b"[7]"), "body.input")
    assert caught.value.param == "body.input[0]"


def test_deep_items_are_refused() -> None:
    deep = b'[{"type":"x","a":' + b"[" * 200_000 + b"]" * 200_000 + b"}]"
    with pytest.raises(ProtocolError, match="nested too deeply"):
        codec.decode_items(Raw(deep))


@pytest.mark.parametrize("item", [item for _, item in RIGHT], ids=lambda item: type(item).__name__)
def test_an_item_survives_its_own_encoding(item: AnyItem) -> None:
    assert codec.decode_items(Raw(b"[" + codec.encode(item) + b"]")) == [item]


def test_text_of_contents() -> None:
    parts = [ContentPart("input_text", "a"), ContentPart("input_image"), ContentPart("text", "b")]
    assert text_of("plain") == "plain"
    assert text_of(parts) == "a[input_image]b"
    assert text_of([]) == ""


@pytest.mark.parametrize(
    ("item", "is_models"),
    [
        (Message(role="assistant", content=""), True),
        (Message(role="user", content=""), False),
        (Message(role="developer", content=""), False),
        (Reasoning(), True),
        (FunctionCall(call_id="c", name="n", arguments=""), True),
        (CustomToolCall(call_id="c", name="n", input=""), True),
        (WebSearchCall(), True),
        (FunctionCallOutput(call_id="c", output=""), False),
        (CustomToolCallOutput(call_id="c", output=""), False),
        (UnknownItem("shiny_call", Raw(b"{}")), True),
        (UnknownItem("shiny_call_output", Raw(b"{}")), False),
        (Compaction(), False),
    ],
)
def test_what_the_model_said(item: AnyItem, is_models: bool) -> None:
    assert is_model_output(item) is is_models


def test_our_own_text_part_has_the_empty_lists_that_clients_expect() -> None:
    assert msgspec.json.decode(msgspec.json.encode(output_text("a"))) == {
        "type": "output_text",
        "text": "a",
        "annotations": [],
        "logprobs": [],
    }
