"""Every way a frame can be wrong leaves the codec as one ProtocolError that says where."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentloop.errors import ProtocolError
from agentloop.wire import codec
from agentloop.wire.items import FunctionTool
from agentloop.wire.requests import Append, Attach, Cancel, ClientMessage, Close, Create

DEEP = 200_000
CANCEL = b'{"type":"response.cancel"}'

WRONG_FRAMES: dict[str, tuple[bytes, str, str | None]] = {
    "empty": (b"", "invalid_input", None),
    "white space": (b" \n", "invalid_input", None),
    "binary": (bytes(range(256)), "invalid_input", None),
    "bad UTF-8": (b'{"type":"response.cancel","event_id":"\xff"}', "invalid_input", None),
    "bad UTF-8 in raw input": (
        b'{"type":"response.append","input":[{"a":"\xc3\x28"}]}', "invalid_input", None
    ),
    "overlong UTF-8": (b'{"type":"response.append","input":"\xc0\x80"}', "invalid_input", None),
    "raw surrogate": (b'{"type":"response.append","input":"\xed\xa0\x80"}', "invalid_input", None),
    "BOM": (b"\xef\xbb\xbf" + CANCEL, "invalid_input", None),
    "UTF-16": (CANCEL.decode().encode("utf-16"), "invalid_input", None),
    "two objects": (CANCEL + CANCEL, "invalid_input", None),
    "two lines": (CANCEL + b"\n" + CANCEL, "invalid_input", None),
    "cut short": (CANCEL[:-1], "invalid_input", None),
    "trailing comma": (b'{"type":"response.cancel",}', "invalid_input", None),
    "NaN": (
        b'{"type":"response.create","model":"m","temperature":NaN}', "invalid_input", None
    ),
    "array": (b"[" + CANCEL + b"]", "invalid_input", None),
    "string": (b'"response.cancel"', "invalid_input", None),
    "number": (b"7", "invalid_input", None),
    "null": (b"null", "invalid_input", None),
    "no type": (b"{}", "invalid_input", "type"),
    "null type": (b'{"type":null}', "invalid_input", "type"),
    "number as type": (b'{"type":5}', "invalid_input", "type"),
    "empty type": (b'{"type":""}', "invalid_input", "type"),
    "unknown type": (b'{"type":"response.frobnicate"}', "unsupported_message", "type"),
    "an event's type": (b'{"type":"response.created"}', "unsupported_message", "type"),
    "no model": (b'{"type":"response.create"}', "invalid_input", "model"),
    "no input": (b'{"type":"response.append"}', "invalid_input", "input"),
    "no id": (b'{"type":"response.attach"}', "invalid_input", "response_id"),
    "number as id": (
        b'{"type":"response.cancel","response_id":5}', "invalid_input", "response_id"
    ),
    "number as key": (b'{"type":"response.close","event_id":[]}', "invalid_input", "event_id"),
    "string as number": (
        b'{"type":"response.attach","response_id":"r","starting_after":"1"}',
        "invalid_input", "starting_after",
    ),
    "fraction as integer": (
        b'{"type":"response.attach","response_id":"r","starting_after":1.5}',
        "invalid_input", "starting_after",
    ),
    "integer of 5,000 digits": (
        b'{"type":"response.attach","response_id":"r","starting_after":' + b"9" * 5_000 + b"}",
        "invalid_input", "starting_after",
    ),
    "integer of 5,000 digits anywhere": (
        b'{"type":"response.create","model":"m","metadata":{"a":' + b"9" * 5_000 + b"}}",
        "invalid_input", None,
    ),
    "nested in raw input": (
        b'{"type":"response.append","input":' + b"[" * DEEP + b"]" * DEEP + b"}",
        "invalid_input", None,
    ),
    "nested in metadata": (
        b'{"type":"response.create","model":"m","metadata":{"a":' + b"[" * DEEP + b"]" * DEEP
        + b"}}",
        "invalid_input", None,
    ),
    "nested in an unknown field": (
        b'{"type":"response.cancel","x":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
        "invalid_input", None,
    ),
    "lone surrogate": (
        b'{"type":"response.cancel","event_id":"\\ud800"}', "invalid_input", None
    ),
    "option of the wrong kind": (
        b'{"type":"response.create","model":"m","agent_loop":{"final":"perhaps"}}',
        "invalid_input", "agent_loop.final",
    ),
    "wrong part of a script": (
        b'{"type":"response.create","model":"m","simulation":{"turns":[[{"text":1}]]}}',
        "invalid_input", "simulation.turns[0][0].text",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("frame", "code", "param"), WRONG_FRAMES.values(), ids=WRONG_FRAMES)
def test_wrong_frame_is_one_protocol_error(frame: bytes, code: str, param: str | None) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.decode_message(frame)
    assert type(caught.value) is ProtocolError
    assert (caught.value.code, caught.value.status) == (code, 400)
    if param is not None:
        assert caught.value.param == param
    assert caught.value.message
    assert len(caught.value.message) < 500, "a huge frame makes no huge error"
    codec.encode(caught.value.message)


def test_unknown_type_is_told_what_is_known() -> None:
    with pytest.raises(ProtocolError, match=r"response\.append, .*response\.create"):
        codec.decode_message(b'{"type":"' + b"x" * 10_000 + b'"}')


RIGHT_FRAMES: list[tuple[bytes, ClientMessage]] = [
    (b'{"type":"response.create","model":"m"}', Create(model="m")),
    (b'{"model":"m","type":"response.create","stream":true}', Create(model="m")),
    (
        b'{"type":"response.append","input":[ {"x": 1} ],"event_id":"k"}',
        Append(input=msgspec.Raw(b'[ {"x": 1} ]'), event_id="k"),
    ),
    (CANCEL, Cancel()),
    (b'{"type":"response.close","stream_id":"s"}', Close(stream_id="s")),
    (
        b'{"type":"response.attach","response_id":"r","starting_after":41,"observe":true}',
        Attach(response_id="r", starting_after=41, observe=True),
    ),
    (b' {"type":"response.cancel"}\n', Cancel()),
    (b'{"type":"response.cancel","response_id":null}', Cancel()),
]


@pytest.mark.parametrize(("frame", "message"), RIGHT_FRAMES)
def test_right_frame(frame: bytes, message: ClientMessage) -> None:
    assert codec.encode(codec.decode_message(frame)) == codec.encode(message)


def test_unknown_fields_are_ignored() -> None:
    frame = b'{"type":"response.create","model":"m","shiny":{"new":[1]},"store":false}'
    assert codec.decode_message(frame) == Create(model="m", store=False)


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (b'{"type":"x","event_id":"e","response_id":"r","stream_id":"s"}', ("x", "e", "r", "s")),
        (b'{"type":"response.append","event_id":"e"}', ("response.append", "e", None, None)),
        (b'{"type":"x","event_id":7,"response_id":{},"stream_id":"s"}', ("x", None, None, "s")),
        (b'{"event_id":"e"}', ("", "e", None, None)),
        (b'{"type":5,"event_id":"e"}', ("", None, None, None)),
        (b"[]", ("", None, None, None)),
        (b"\xff", ("", None, None, None)),
    ],
)
def test_envelope_tells_what_can_be_told(frame: bytes, told: tuple[Any, ...]) -> None:
    found = codec.envelope(frame)
    assert (found.type, found.event_id, found.response_id, found.stream_id) == told


def test_a_lanes_name_is_added_when_sent() -> None:
    frames = [b'{"type":"a","sequence_number":0}', codec.encode({"type": "b"})]
    named = codec.with_stream_id(frames, 'l"ane')
    assert [msgspec.json.decode(frame) for frame in named] == [
        {"type": "a", "sequence_number": 0, "stream_id": 'l"ane'},
        {"type": "b", "stream_id": 'l"ane'},
    ]


def test_canonical_form_does_not_depend_on_order() -> None:
    assert codec.canonical({"b": [1, {"z": 1, "a": 2}], "a": "ä"}) == (
        '{"a":"ä","b":[1,{"a":2,"z":1}]}'.encode()
    )


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"type":"function"}', "tools[3]"),
        (b'{"type":"function","name":5}', "tools[3].name"),
        (b'{"type":"function","name":"f","parameters":[]}', "tools[3].parameters"),
        (b'{"type":7}', "tools[3].type"),
        (b"[]", "tools[3]"),
    ],
)
def test_wrong_tool(raw: bytes, param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.decode_tool(msgspec.Raw(raw), "tools[3]")
    assert (caught.value.param or "").startswith(param)


def test_a_tool_of_another_kind_stays_as_it_came() -> None:
    raw = msgspec.Raw(b'{ "type": "web_search",  "filters": {"x": 1.0} }')
    assert bytes(codec.decode_tool(raw, "tools[0]")) == bytes(raw)  # type: ignore[arg-type]
    tool = codec.decode_tool(msgspec.Raw(b'{"type":"function","name":"f","shiny":1}'), "tools[0]")
    assert tool == FunctionTool(name="f")


# -- anything at all -------------------------------------------------------------------------------


def decode_all(frame: bytes) -> None:
    """All that the border does with a frame; only a ProtocolError may come out of it."""
    codec.envelope(frame)
    assert codec.is_json(frame) in (True, False)
    try:
        message = codec.decode_message(frame)
        if isinstance(message, Append | Create):
            codec.encode(codec.decode_items(message.input))
        if isinstance(message, Create):
            for raw in message.tools:
                codec.decode_tool(raw, "tools[0]")
        codec.encode(message)
    except ProtocolError as error:
        codec.encode([error.message, error.param])


@given(st.binary(max_size=60))
@example(b'{"type":"response.append","input":"\\udfff"}')
@example(b'{"type":"response.append","input":[{"type":"\\ud800"}]}')
@example(b'{"type":"response.append","input":[{"type":"message","role":"user"}]}')
def test_any_bytes(frame: bytes) -> None:
    decode_all(frame)


VALID = [frame for frame, _ in RIGHT_FRAMES] + [
    b'{"type":"response.append","input":[{"type":"function_call_output","call_id":"c","output":'
    b'[{"type":"input_text","text":"\\u00e4"}]},{"role":"user","content":"\xc3\xa4"}]}',
    b'{"type":"response.create","model":"m","tools":[{"type":"function","name":"f"}],"input":"i",'
    b'"agent_loop":{"final":"hold","detach_ttl_s":1e3},"simulation":{"turns":[[{"text":"a"}]]}}',
]
FRAGMENTS = [
    b"", b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"{", b"}", b"[", b"]", b'"', b",", b":",
    b"null", b"1e999", b"-", b"9" * 5_000, b"\\ud800", b"\\u12", b"[" * 2_000, b'{"a":' * 2_000,
    b"true", b'"type"', b'"input"', b"\xef\xbb\xbf", b"NaN",
]  # fmt: skip


@settings(max_examples=500)
@given(
    st.sampled_from(VALID),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), st.sampled_from(FRAGMENTS)), max_size=3),
)
def test_any_damage_to_a_valid_frame(frame: bytes, damage: list[tuple[float, int, bytes]]) -> None:
    for where, length, fragment in damage:
        begin = int(where * len(frame))
        frame = frame[:begin] + fragment + frame[begin + length :]
    decode_all(frame)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
FIELDS = sorted({name for kind in ClientMessage.__args__ for name in kind.__struct_fields__})


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(codec.MESSAGE_TYPES)), st.dictionaries(st.sampled_from(FIELDS), VALUES)
)
def test_any_value_in_any_field(message_type: str, fields: dict[str, Any]) -> None:
    decode_all(msgspec.json.encode({"type": message_type, "model": "m", **fields}))
