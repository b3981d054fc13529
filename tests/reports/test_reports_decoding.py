"""Frames that no decoder should see: each costs one error event, and nothing else changes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from agentloop.wire.requests import ClientMessage
from tests.conformance.heard import Event
from tests.reports.report_kit import (
    SHELL,
    STAGES,
    Client,
    Site,
    append,
    create,
    in_steps,
    of_type,
    run,
    types_of,
    user,
)

on_both_links = pytest.mark.parametrize("stage", STAGES)

DEEP = 100_000
DIGITS = b"9" * 4_301
CREATE = msgspec.json.encode(create([{"text": "ok"}]))


def with_field(field: bytes, frame: bytes = CREATE) -> bytes:
    """The frame with one more field at its end."""
    return frame[:-1] + b"," + field + b"}"


def append_of(raw_input: bytes) -> bytes:
    return b'{"type":"response.append","input":' + raw_input + b"}"


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


BAD: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"{]",
    "cut short": CREATE[:-1],
    "two messages": CREATE + CREATE,
    "BOM": b"\xef\xbb\xbf" + CREATE,
    "UTF-16": CREATE.decode().encode("utf-16"),
    "bad UTF-8 in a declared field": with_field(b'"instructions":"\xff"'),
    "bad UTF-8 in any value": with_field(b'"metadata":{"a":"\xc3\x28"}'),
    "bad UTF-8 in an unknown field": with_field(b'"unknown":{"a":["\xed\xa0\x80"]}'),
    "bad UTF-8 in a name": with_field(b'"\xfe":1'),
    "bad UTF-8 in input": append_of(b'[{"role":"user","content":"\xf0\x9f\x98"}]'),
    "high surrogate in a declared field": with_field(b'"instructions":"\\ud83d"'),
    "low surrogate in any value": with_field(b'"metadata":{"a":"\\ude00"}'),
    "high surrogate in input": append_of(b'[{"role":"user","content":"\\ud83d!"}]'),
    "low surrogate in an event_id": with_field(b'"event_id":"\\udc00"'),
    "array of 100,000 levels": nested(DEEP),
    "input of 100,000 levels": append_of(nested(DEEP)),
    "unknown field of 100,000 levels": with_field(b'"unknown":' + nested(DEEP)),
    "metadata of 100,000 levels": with_field(b'"metadata":{"a":' + nested(DEEP) + b"}"),
    "objects of 100,000 levels": with_field(b'"u":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "tool of 100,000 levels": with_field(b'"tools":[{"type":"x","a":' + nested(DEEP) + b"}]"),
    "unfinished array of 100,000 levels": b"[" * DEEP,
    "4,301 digits in metadata": with_field(b'"metadata":{"a":' + DIGITS + b"}"),
    "1e400 in metadata": with_field(b'"metadata":{"a":1e400}'),
    "NaN in metadata": with_field(b'"metadata":{"a":NaN}'),
    "Infinity in an unknown field": with_field(b'"unknown":-Infinity'),
    "duplicate type": with_field(b'"type":"response.cancel"'),
    "null": b"null",
    "4,301 digits": DIGITS,
}  # fmt: skip
GOOD: dict[str, bytes] = {
    "type not first": b'{"input":[],"type":"response.append"}',
    "duplicate field": append_of(b'7,"input":[]'),
    "pair of surrogates": append_of(b'[{"role":"user","content":"\\ud83d\\ude00"}]'),
    "controls and separators": append_of(
        '[{"role":"user","content":"\\u0000\u2028\x85"}]'.encode()
    ),
    "unknown field": append_of(b'[],"unknown":{"a":[1e300,null]}'),
}


def check_error(events: list[Event]) -> Event:
    """The one thing that was said: a readable error that blames the client."""
    (error,) = events
    assert (error["type"], error["status"]) == ("error", 400)
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["code"] == "invalid_input"
    assert 0 < len(error["error"]["message"]) <= 1_000
    return error


@pytest.fixture(autouse=True)
def quiet_server(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No client can make the server log a fault of its own."""
    yield
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert not errors


@on_both_links
@pytest.mark.parametrize("frame", BAD.values(), ids=BAD)
def test_b42_bad_frame_is_one_error_and_the_link_lives(frame: bytes, stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        before = await client.ask(create([SHELL], [{"text": "ok"}]))
        check_error(await client.ask(frame))
        attached, *replayed, _ = await site.attached(before[0]["response"]["id"])
        assert attached["state"] == "suspended"
        assert replayed == before
        assert types_of(await client.ask(append(user("still there?")))) == [
            "response.append.accepted"
        ]

    run(main, stage)


@on_both_links
@pytest.mark.parametrize("frame", GOOD.values(), ids=GOOD)
def test_b42_odd_but_valid_frame_is_taken(frame: bytes, stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        await client.ask(create([SHELL]))
        assert types_of(await client.ask(frame)) == ["response.append.accepted"]

    run(main, stage)


@on_both_links
def test_b42_bad_frames_do_not_disturb_a_running_turn(stage: str) -> None:
    turn: list[Event] = [{"reasoning": "Hm."}, {"repeat": {"text": "word ", "tokens": 60}}, SHELL]

    def play(bad: list[bytes]) -> tuple[list[Event], list[Event]]:
        """What is said but for the errors, and these."""
        heard: list[Event] = []

        async def main(site: Site) -> None:
            client = await site.client()
            heard.extend(await client.ask(create(turn)))
            for frame in bad:
                await site.service.clock.sleep(0.002)
                heard.extend(await client.ask(frame))
            assert not bad or "response.done" not in types_of(heard), "the turn still runs"
            heard.extend(await client.hear(1.0))

        run(main, stage, in_steps(1, step_ms=1.0))
        errors = of_type(heard, "error")
        return [event for event in heard if event not in errors], errors

    undisturbed, _ = play([])
    said, errors = play([*BAD.values()])
    assert said == undisturbed
    assert said[-1]["response"]["state"] == "suspended"
    assert len([check_error([error]) for error in errors]) == len(BAD)


# -- numbers ---------------------------------------------------------------------------------------

NUMBERS: dict[str, Event] = {
    "max_output_tokens": create([{"text": "ok"}], max_output_tokens="$n"),
    "temperature": create([{"text": "ok"}], temperature="$n"),
    "top_p": create([{"text": "ok"}], top_p="$n"),
    "agent_loop.engine_retries": create([{"text": "ok"}], agent_loop={"engine_retries": "$n"}),
    "agent_loop.detach_ttl_s": create([{"text": "ok"}], agent_loop={"detach_ttl_s": "$n"}),
    "agent_loop.tool_timeout_s": create([SHELL], agent_loop={"tool_timeout_s": "$n"}),
    "simulation.seed": create([{"text": "ok"}], simulation={"seed": "$n"}),
    "simulation.turn": create([{"text": "ok"}], simulation={"turn": "$n"}),
    "simulation.turns[0][0].times": create([{"fail": "server_error", "times": "$n"}]),
    "simulation.turns[0][0].stall_ms": create([{"stall_ms": "$n"}, {"text": "ok"}]),
    "simulation.turns[0][0].raw_tokens[0]": create([{"raw_tokens": ["$n"]}]),
    "simulation.turns[0][0].repeat.tokens": create([{"repeat": {"text": "x", "tokens": "$n"}}]),
    "starting_after": {
        "type": "response.attach", "response_id": "$r", "observe": True, "starting_after": "$n",
    },
}  # fmt: skip
VALUES = [str(2**63), str(-(2**63) - 1), str(2**64), str(10**30), "1" + "0" * 4_300]
VALUES += ["-1" + "0" * 4_300, "1e400", "NaN", "Infinity", "-Infinity"]


def number_fields(kind: Any, path: str = "") -> Iterator[str]:
    """The paths of all integers and floats that a message may hold."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            yield path
        case inspect.UnionType(types=kinds):
            for each in kinds:
                yield from number_fields(each, path)
        case inspect.StructType(fields=fields):
            for field in fields:
                yield from number_fields(field.type, f"{path}.{field.encode_name}")
        case inspect.ListType(item_type=inner):
            yield from number_fields(inner, f"{path}[0]")
        case _:
            pass  # what any value may hold is not read as a number


def test_b42_every_number_of_the_messages_is_tested() -> None:
    fields = {path.lstrip(".") for path in number_fields(inspect.type_info(ClientMessage))}
    assert fields == {*NUMBERS}


def integers_in(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [number for each in value.values() for number in integers_in(each)]
    return [value] if isinstance(value, int) else []


@on_both_links
@pytest.mark.parametrize("path", NUMBERS)
def test_b42_number_out_of_range_is_refused_or_harmless(path: str, stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        response_id = (await client.ask(create([{"text": "ok"}])))[0]["response"]["id"]
        template = msgspec.json.encode(NUMBERS[path]).replace(b'"$r"', f'"{response_id}"'.encode())
        for value in VALUES:
            said = await client.ask(template.replace(b'"$n"', value.encode()))
            if said[0]["type"] == "error":
                assert path.startswith(check_error(said)["error"]["param"] or "")
                continue
            assert said[0]["type"] == "response.created", f"{value[:40]}: {said[0]}"
            response = site.service.live.get(said[0]["response"]["id"]).response
            kept = msgspec.structs.asdict(response.config)
            kept |= msgspec.structs.asdict(response.config.options)
            too_large = [key for key, each in kept.items() if any(map(is_large, integers_in(each)))]
            assert not too_large, f"{value[:40]} is kept, and no database takes it"
            if site.has_http:
                await site.shown(response.id)

    run(main, stage)


def is_large(number: int) -> bool:
    return not -(2**63) <= number < 2**63


# -- nesting that is taken, but only just ----------------------------------------------------------

NESTED: dict[str, Callable[[bytes], bytes]] = {
    "metadata": lambda deep: with_field(b'"metadata":{"a":' + deep + b"}"),
    "reasoning": lambda deep: with_field(b'"reasoning":{"a":' + deep + b"}"),
    "tool choice": lambda deep: with_field(b'"tool_choice":' + deep),
    "parameters": lambda deep: with_field(
        b'"tools":[{"type":"function","name":"f","parameters":{"a":' + deep + b"}}]"
    ),
    "freeform tool": lambda deep: with_field(b'"tools":[{"type":"x","a":' + deep + b"}]"),
    "unknown item": lambda deep: with_field(b'"input":[{"type":"x","a":' + deep + b"}]"),
    "arguments of a script": lambda deep: CREATE.replace(
        b'{"text":"ok"}', b'{"call":{"name":"shell","arguments":{"a":' + deep + b"}}}"
    ),
    "unknown field beside a key": lambda deep: with_field(
        b'"event_id":"k%d","x":' % len(deep) + deep
    ),
}


async def first_refused(is_taken: Callable[[int], Awaitable[bool]]) -> int:
    """The first depth that is refused, found by halving."""
    taken, refused = 1, DEEP
    while refused - taken > 1:
        depth = (taken + refused) // 2
        taken, refused = (depth, refused) if await is_taken(depth) else (taken, depth)
    return refused


@pytest.mark.parametrize("make", NESTED.values(), ids=NESTED)
def test_b42_nesting_at_the_edge_of_what_decodes_is_taken_or_refused(
    make: Callable[[bytes], bytes],
) -> None:
    async def main(site: Site) -> None:
        async def ask(depth: int) -> list[Event]:
            return await (await site.client()).ask(make(nested(depth)))

        async def is_taken(depth: int) -> bool:
            return types_of(await ask(depth))[0] != "error"

        edge = await first_refused(is_taken)
        for depth in range(edge - 20, edge + 20):
            said = await ask(depth)
            if said[0]["type"] == "error":
                check_error(said)
            else:
                assert said[-1]["type"] in ("response.done", "response.replay.done")

    run(main)


@pytest.mark.parametrize("end", ["cancel", "loss"])
def test_b42_input_at_the_edge_does_not_swallow_the_terminal(end: str) -> None:
    """Unconsumed input is said again in the terminal, from a deeper stack than it came in on."""

    async def send(client: Client, depth: int) -> tuple[str, bool]:
        said = await client.ask(create([{"stall_ms": 1_000}, {"text": "ok"}]))
        item = b'[{"role":"user","content":"x","agent":' + nested(depth) + b"}]"
        answer, *_ = await client.ask(append_of(item))
        return said[0]["response"]["id"], answer["type"] == "response.append.accepted"

    async def main(site: Site) -> None:
        async def is_taken(depth: int) -> bool:
            return (await send(await site.client(), depth))[1]

        edge = await first_refused(is_taken)
        for depth in range(edge - 10, edge):
            client = await site.client()
            response_id, _ = await send(client, depth)
            if end == "loss":
                client.cut()
                await site.service.clock.sleep(1.0)
            else:
                assert types_of(await client.ask({"type": "response.cancel"}))[-1:] == [
                    "response.incomplete"
                ]
            assert types_of(await site.replayed(response_id))[-1] == "response.incomplete"

    run(main)
