"""Bad frames over a real socket: each costs one readable error, and nobody else anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.abuse.scene_kit import (
    STALLED_S,
    WHEN,
    Scene,
    check_error,
    create,
    of_turn,
    plain,
    run,
    undisturbed,
)
from tests.abuse.socket_kit import BINARY, CONTINUATION, frame
from tests.conformance.heard import Event

QUICK: list[Event] = [{"text": "ok"}]
HEAD = b'{"type":"response.create","model":"sim",'
DEEP = b"[" * 100_000 + b"]" * 100_000
DEEP_OBJECTS = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
HUGE = b"9" * 4_301


def field(name: str, value: bytes) -> bytes:
    """A create with one more field, as raw JSON."""
    return HEAD + b'"' + name.encode() + b'":' + value + b"}"


# -- a bad frame -----------------------------------------------------------------------------------

BAD: dict[str, bytes] = {
    "empty": b"",
    "white space": b" \n",
    "not JSON": b"response.create",
    "half an object": b'{"type":"response.create","model":"sim","inp',
    "two objects": HEAD[:-1] + b"}" + HEAD[:-1] + b"}",
    "byte order mark": b"\xef\xbb\xbf" + HEAD[:-1] + b"}",
    "NUL": b"\x00",
    "array": b"[]",
    "nothing in it": b"{}",
    "null": b"null",
    "number": b"7",
    "string": b'"response.create"',
    "nesting": field("input", DEEP),
    "nesting of objects": field("input", DEEP_OBJECTS),
    "nesting in a skipped field": field("unknown", DEEP),
    "nesting of objects in a skipped field": field("unknown", DEEP_OBJECTS),
    "nesting in a tool": field("tools", b"[" + DEEP + b"]"),
    "nesting in metadata": field("metadata", b'{"a":' + DEEP + b"}"),
    "nesting without an end": field("input", DEEP[:100_000]),
    "nothing but nesting": DEEP,
    "unknown type": b'{"type":"response.think"}',
    "very long unknown type": b'{"type":"' + b"x" * 1_000_000 + b'"}',
    "missing type": b'{"model":"sim","input":"go"}',
    "type null": b'{"type":null}',
    "type number": b'{"type":7}',
    "type huge": b'{"type":' + HUGE + b"}",
    "type twice": b'{"type":"response.cancel","type":"response.close"}',
    "huge integer": field("max_output_tokens", HUGE),
    "huge negative integer": field("max_output_tokens", b"-" + HUGE),
    "huge integer as a seed": field("simulation", b'{"seed":' + HUGE + b"}"),
    "huge integer in metadata": field("metadata", b'{"a":' + HUGE + b"}"),
    "huge integer as an id": field("event_id", HUGE),
    "huge integer as a number": field("temperature", HUGE),
    "huge exponent": field("temperature", b"1e400"),
    "not a number": field("temperature", b"NaN"),
    "infinity": field("temperature", b"Infinity"),
    "invalid UTF-8": field("input", b'"\xff\xfe"'),
    "invalid UTF-8 in a skipped field": field("unknown", b'"\xff\xfe"'),
    "invalid UTF-8 in a tool": field("tools", b'[{"type":"x","name":"\xc3\x28"}]'),
    "overlong UTF-8": field("input", b'"\xc0\xaf"'),
    "surrogate as UTF-8": field("input", b'"\xed\xa0\x80"'),
    "lone high surrogate": field("input", rb'"\ud800"'),
    "lone low surrogate": field("input", rb'"\udc00"'),
    "lone surrogate before text": field("input", rb'"\ud800 and so on"'),
    "lone surrogate in a skipped field": field("unknown", rb'"\ud800"'),
    "lone surrogate in a tool": field("tools", rb'[{"type":"x","name":"\ud800"}]'),
    "lone surrogate in a schema": field(
        "tools", rb'[{"type":"function","name":"f","parameters":{"title":"\udc00"}}]'
    ),
    "lone surrogate in metadata": field("metadata", rb'{"a":"\ud800"}'),
    "lone surrogate in a choice": field("tool_choice", rb'"\ud800"'),
    "lone surrogate as an id": field("event_id", rb'"\ud800"'),
    "lone surrogate as a lane": field("stream_id", rb'"\ud800"'),
    "lone surrogate in an append": (
        rb'{"type":"response.append","input":"\ud800","client_metadata":{}}'
    ),
    "lone surrogate in an append's metadata": (
        rb'{"type":"response.append","input":[],"client_metadata":{"a":"\ud800"}}'
    ),
}
BAD_FRAMES = {name: frame(payload) for name, payload in BAD.items()} | {
    "binary": frame(b"\x00\x01", BINARY),
    "empty binary": frame(b"", BINARY),
    "binary JSON": frame(msgspec.json.encode(create()), BINARY),
    "empty in fragments": frame(b"", is_final=False) + frame(b"", CONTINUATION),
    "binary in fragments": frame(b"\x00", BINARY, is_final=False) + frame(b"\x01", CONTINUATION),
}


async def suffer(scene: Scene, bad: bytes, *, is_running: bool) -> tuple[list[Event], ...]:
    """A bad frame on a link of its own: the answer to it, and all that is said of the good turns
    there and on another link. A good frame follows."""
    peer, other = await scene.peer(), await scene.peer()
    await other.say(create())
    heard = await peer.ask(create(), patience_s=STALLED_S) if is_running else []
    await peer.write(bad)
    answer = await peer.hear()
    good = create(QUICK, stream_id="b") if is_running else create()
    heard += await peer.ask(good, patience_s=3.0)
    if is_running:
        on_lane = [event["type"] for event in heard if event.get("stream_id") == "b"]
        assert (on_lane[0], on_lane[-1]) == ("response.created", "response.done")
    elsewhere = await other.hear()
    peer.close()
    other.close()
    return answer, plain(of_turn(heard)), plain(elsewhere)


@WHEN
def test_bad_frame_costs_one_error_and_nothing_else(is_running: bool) -> None:
    async def main(scene: Scene) -> None:
        for name, bad in BAD_FRAMES.items():
            answer, here, elsewhere = await suffer(scene, bad, is_running=is_running)
            error = check_error(answer)
            code = "unsupported_message" if "unknown type" in name else "invalid_input"
            assert (error["status"], error["error"]["code"]) == (400, code), name
            assert here == alone, name
            assert elsewhere == alone, name

    alone = plain(undisturbed(create()))
    run(main)


IDS = {"event_id": "ev", "response_id": "resp", "stream_id": "lane"}


@WHEN
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("unsupported_message", {"type": "response.think", **IDS}),
        ("invalid_input", {"type": "response.create", "model": 7, **IDS}),
        ("invalid_input", IDS),
        ("response_not_found", {"type": "response.append", "input": [], **IDS}),
        ("response_not_found", {"type": "response.cancel", **IDS}),
        ("response_not_found", {"type": "response.close", **IDS}),
        ("response_not_found", {"type": "response.attach", **IDS}),
        ("invalid_input", {"type": "response.append", **IDS, "response_id": 7}),
        ("invalid_input", {"type": "response.append", "input": [], "event_id": "e" * 513}),
    ],
)
def test_error_echoes_the_ids_that_could_be_read(
    code: str, message: Event, is_running: bool
) -> None:
    async def main(scene: Scene) -> None:
        peer = await scene.peer()
        if is_running:
            await peer.ask(create(), patience_s=STALLED_S)
        readable = {
            name: message[name]
            for name in ("event_id", "response_id", "stream_id")
            if isinstance(message.get(name), str)
        }
        error = check_error(await peer.ask(message), **readable)
        assert error["error"]["code"] == code

    run(main)


# -- wrong types -----------------------------------------------------------------------------------

NOT_STRING: list[Any] = [7, 1.5, True, [], {}]
NOT_INTEGER: list[Any] = ["7", 1.5, True, [], {}]
NOT_NUMBER: list[Any] = ["7", True, [], {}]
NOT_BOOLEAN: list[Any] = ["true", 0, 1, [], {}]
NOT_LIST: list[Any] = ["x", 7, True, {}]
NOT_OBJECT: list[Any] = ["x", 7, True, []]
NOT_INPUT: list[Any] = [7, True, {}, [7], [None], [[]], ["x"], [{"type": 7}], [{"role": 7}]]
NOT_TURNS: list[Any] = [*NOT_LIST, [7], [{}], [[7]], [[{"text": 7}]], [[{"call": "shell"}]]]
NOT_PART_VALUES: dict[str, list[Any]] = {
    "reasoning": NOT_STRING,
    "text": NOT_STRING,
    "call": [*NOT_OBJECT, {}, {"name": 7}, {"name": "f", "arguments": 7}],
    "stall_ms": NOT_NUMBER,
    "fail": NOT_STRING,
    "times": NOT_INTEGER,
    "raw_tokens": [*NOT_LIST, ["x"], [1.5]],
    "repeat": [*NOT_OBJECT, {}, {"text": 7, "tokens": 1}, {"text": "x", "tokens": "1"}],
}
A_CREATE: Event = {"type": "response.create", "model": "sim", "input": "go"}
WRONG: dict[str, tuple[Event, dict[str, list[Any]]]] = {
    "create": (
        A_CREATE,
        {
            "model": [*NOT_STRING, None],
            "input": NOT_INPUT,
            "instructions": NOT_STRING,
            "tools": [*NOT_LIST, [7], [None], ["x"], [[]], [{"type": 7}], [{"type": "function"}]],
            "parallel_tool_calls": NOT_BOOLEAN,
            "previous_response_id": NOT_STRING,
            "store": NOT_BOOLEAN,
            "background": NOT_BOOLEAN,
            "max_output_tokens": [*NOT_INTEGER, 0, -1],
            "reasoning": NOT_OBJECT,
            "metadata": NOT_OBJECT,
            "temperature": NOT_NUMBER,
            "top_p": NOT_NUMBER,
            "prompt_cache_key": NOT_STRING,
            "event_id": NOT_STRING,
            "stream_id": [*NOT_STRING, "", "a b", "x" * 257],
            "agent_loop": NOT_OBJECT,
            "simulation": NOT_OBJECT,
        },
    ),
    "append": (
        {"type": "response.append", "input": []},
        {
            "input": [*NOT_INPUT, None],
            "response_id": NOT_STRING,
            "stream_id": NOT_STRING,
            "event_id": NOT_STRING,
        },
    ),
    "cancel": (
        {"type": "response.cancel"},
        {"response_id": NOT_STRING, "stream_id": NOT_STRING, "event_id": NOT_STRING},
    ),
    "close": (
        {"type": "response.close"},
        {"response_id": NOT_STRING, "stream_id": NOT_STRING, "event_id": NOT_STRING},
    ),
    "attach": (
        {"type": "response.attach", "response_id": "resp"},
        {
            "response_id": [*NOT_STRING, None],
            "stream_id": NOT_STRING,
            "starting_after": [*NOT_INTEGER, None],
            "observe": [*NOT_BOOLEAN, None],
            "event_id": NOT_STRING,
        },
    ),
}


def wrong_frames() -> Iterator[tuple[str, Event]]:
    """Every message with one field of a wrong type: what is wrong, and the message."""
    for message, fields in WRONG.values():
        for name, values in fields.items():
            yield from ((name, {**message, name: value}) for value in values)
    options = {
        "final": [*NOT_STRING, "never"],
        "detach_ttl_s": [*NOT_NUMBER, -1, 1e300],
        "tool_timeout_s": [*NOT_NUMBER, -1, 1e300],
        "on_tool_timeout": [*NOT_STRING, "never"],
        "engine_retries": [*NOT_INTEGER, -1, 10**18],
    }
    for name, values in options.items():
        yield from (("agent_loop", {**A_CREATE, "agent_loop": {name: v}}) for v in values)
    simulation = {
        "turns": NOT_TURNS,
        "profile": NOT_STRING,
        "seed": NOT_INTEGER,
        "turn": NOT_INTEGER,
    }
    for name, values in simulation.items():
        yield from (("simulation", {**A_CREATE, "simulation": {name: v}}) for v in values)
    for name, values in NOT_PART_VALUES.items():
        for value in values:
            part = {"fail": "server_error", name: value} if name == "times" else {name: value}
            yield "simulation", {**A_CREATE, "simulation": {"turns": [[{"text": "x"}, part]]}}


def misses(heard: list[Event], name: str) -> bool:
    """Whether this is anything else than one error that names the field."""
    try:
        error = check_error(heard, **{k: heard[0][k] for k in heard[0] if k.endswith("_id")})
    except (AssertionError, LookupError, ValueError):
        return True
    named = (error["error"]["param"] or "").partition(".")[0].partition("[")[0]
    return error["status"] != 400 or named != name


@WHEN
def test_field_of_a_wrong_type_costs_one_error_that_names_it(is_running: bool) -> None:
    async def main(scene: Scene) -> None:
        running = await scene.peer()
        heard = await running.ask(create(), patience_s=STALLED_S)
        wrongly: list[tuple[Event, list[Event]]] = []
        for name, message in wrong_frames():
            if not is_running and (message["type"], name) == ("response.append", "input"):
                continue  # it is for no Response, and that is said first
            peer = running if is_running else await scene.peer()
            answer = await peer.ask(message)
            if misses(answer, name):
                wrongly.append((message, answer[:1]))
            if not is_running:
                peer.close()
        assert wrongly == []
        heard += await running.hear(10.0)
        assert heard == alone
        assert scene.runs.started == 1

    alone = undisturbed(create())
    run(main)


CHOICES = {"number": b"7", "boolean": b"true", "array": b"[]"}


@pytest.mark.parametrize("value", CHOICES.values(), ids=CHOICES)
def test_tool_choice_of_a_wrong_type_is_refused(value: bytes) -> None:
    async def main(scene: Scene) -> None:
        peer = await scene.peer()
        assert not misses(await peer.ask(field("tool_choice", value)), "tool_choice")

    run(main)


UNREADABLE = {
    "choice": field("tool_choice", HUGE),
    "field of a choice": field("tool_choice", b'{"a":' + HUGE + b"}"),
    "field of a tool": field("tools", b'[{"type":"x","a":' + HUGE + b"}]"),
    "field of a schema": field(
        "tools", b'[{"type":"function","name":"f","parameters":{"maximum":' + HUGE + b"}}]"
    ),
    "effort": field("reasoning", b'{"effort":' + HUGE + b"}"),
    "deep choice": field("tool_choice", DEEP[:900] + DEEP[-900:]),
}


@pytest.mark.parametrize("bad", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_said_again_does_not_break_its_reader(bad: bytes) -> None:
    """`response.created` echoes what the client sent, as it came: it is readable, or refused."""

    async def main(scene: Scene) -> None:
        peer = await scene.peer()
        frames: list[bytes] = []
        peer.keep = frames.append
        await peer.ask(bad)
        for each in frames:
            msgspec.json.decode(each)

    run(main)
