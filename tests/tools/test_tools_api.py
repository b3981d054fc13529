"""The boundary: whatever a model writes and a tool does, the answer is text."""

from __future__ import annotations

import asyncio
from typing import Annotated

import pytest
from msgspec import Meta

from agentloop.clock import Clock, run_virtual
from agentloop.errors import ConfigError, ToolFailed
from agentloop.tools.api import Arguments, Durability, Tool, Toolbox, define, usage

_Count = Annotated[int, Meta(ge=1, description="How often.")]


class SayArguments(Arguments, frozen=True):
    text: str
    count: _Count = 1


class Say:
    """Says its text, or does what the text names."""

    name = "say"
    kind: Durability = "idempotent"
    definition = define(name, "Say a text.", SayArguments)

    def __init__(self) -> None:
        self.has_cleaned_up = False

    async def run(self, arguments: dict[str, object]) -> str:
        asked = SayArguments.read(arguments)
        if asked.text == "fail":
            raise ToolFailed("text may not be 'fail'; say something else")
        if asked.text == "break":
            raise ZeroDivisionError("division by zero")
        if asked.text == "time out by itself":
            raise TimeoutError("inner")
        if asked.text == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                self.has_cleaned_up = True
        return asked.text * asked.count


def test_the_definition_is_derived_from_the_arguments() -> None:
    (definition,) = Toolbox([Say()]).definitions()
    assert definition.name == "say"
    assert definition.parameters == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer", "minimum": 1, "description": "How often.", "default": 1},
        },
        "required": ["text"],
        "additionalProperties": False,
    }
    assert usage(definition.parameters) == "{text: string, count?: integer}"


async def test_a_call_answers_with_the_output() -> None:
    assert await Toolbox([Say()]).call("say", '{"text": "ha", "count": 2}') == "haha"


BAD_CALLS = {
    "unknown tool": ("cry", "{}", ["no tool 'cry'", "say"]),
    "not JSON": ("say", '{"text": ', ["say", "JSON", "{text: string, count?: integer}"]),
    "no arguments": ("say", "", ["JSON", "{text: string, count?: integer}"]),
    "not an object": ("say", "[1]", ["Expected `object`", "{text: string"]),
    "lone surrogate": ("say", '{"text": "\ud800"}', ["JSON"]),
    "escaped lone surrogate": ("say", '{"text": "\\ud800"}', ["JSON"]),
    "nested without end": ("say", '{"text":' + "[" * 100_000, ["JSON"]),
    "wrong type": ("say", '{"text": 1}', ["$.text", "{text: string"]),
    "out of range": ("say", '{"text": "a", "count": 0}', ["$.count", ">= 1"]),
    "missing": ("say", '{"count": 1}', ["missing required field `text`"]),
    "unknown field": ("say", '{"text": "a", "loud": true}', ["unknown field `loud`"]),
    "the tool fails": ("say", '{"text": "fail"}', ["may not be 'fail'; say something else"]),
    "the tool breaks": ("say", '{"text": "break"}', ["say broke: ZeroDivisionError"]),
    "its own timeout": ("say", '{"text": "time out by itself"}', ["TimeoutError: inner"]),
}


@pytest.mark.parametrize(("name", "arguments", "hints"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
async def test_a_bad_call_names_what_is_wrong(name: str, arguments: str, hints: list[str]) -> None:
    output = await Toolbox([Say()]).call(name, arguments)
    assert output.startswith("error: ")
    assert [hint for hint in hints if hint not in output] == []


def test_a_call_that_never_ends_is_stopped() -> None:
    async def main(clock: Clock) -> None:
        say = Say()
        output = await Toolbox([say], timeout_s=5).call("say", '{"text": "hang"}')
        assert output == "error: say did not end within 5 s and was stopped"
        assert clock.now() == 5
        assert say.has_cleaned_up

    run_virtual(main)


async def test_cancellation_passes_after_the_tool_has_stopped() -> None:
    say = Say()
    async with asyncio.TaskGroup() as group:
        calling = group.create_task(Toolbox([say]).call("say", '{"text": "hang"}'))
        await asyncio.sleep(0)
        calling.cancel()
    assert calling.cancelled()
    assert say.has_cleaned_up


async def test_output_is_clean_and_bounded() -> None:
    box = Toolbox([Say()], output_chars_max=1_000)
    output = await box.call("say", '{"text": "\\u001b[31mred\\u0000 ", "count": 1000}')
    assert output.startswith("red red ")
    assert len(output) <= 1_000
    assert "characters cut" in output


async def test_an_error_is_clean_too() -> None:
    assert "\x1b" not in await Toolbox([]).call("\x1b[31mx", "{}")


def test_names_must_differ() -> None:
    with pytest.raises(ConfigError, match="say"):
        Toolbox([Say(), Say()])


def test_durability_is_known_by_name() -> None:
    say: Tool = Say()
    box = Toolbox([say])
    assert (box.kind_of("say"), box.kind_of("unknown")) == ("idempotent", "pure")
    assert "say" in box
    assert "unknown" not in box
