"""The seeded agent and the echo: the same turn, the same words; tools only where wanted."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from agentloop.behaviors.echo import Echo
from agentloop.behaviors.schema import CannotFill
from agentloop.behaviors.seeded import HARMLESS, Seeded, arguments_for
from agentloop.wire.items import FunctionCall, FunctionCallOutput, FunctionTool, Message
from tests.behaviors.behavior_kit import heard, turn_of, user

WORDS = {"type": "array", "items": {"type": "string"}}


def tool(name: str = "look", required: tuple[str, ...] = (), **properties: Any) -> FunctionTool:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return FunctionTool(name=name, parameters=schema)


SHELL = tool("shell", ("cmd",), cmd={"type": "string"}, timeout_s={"type": "number"})
BEYOND = tool("beyond", ("a",), a={"type": "string", "pattern": "x"})


def test_the_answer_follows_from_seed_turn_and_text() -> None:
    def said(seed: int, number: int, text: str) -> str:
        [(kind, _, answer)] = heard(
            Seeded().plan(turn_of(number, items=[user(text)], tools=[SHELL], seed=seed))
        )
        assert kind == "message"
        return answer

    assert said(1, 0, "mend it") == said(1, 0, "mend it")
    assert len({said(seed, 0, "mend it") for seed in range(20)}) > 5
    assert len({said(1, number, "mend it") for number in range(20)}) > 5
    assert "break it" in said(1, 0, "break it")


def test_it_answers_without_a_user() -> None:
    assert heard(Seeded().plan(turn_of()))[0][2]


@pytest.mark.parametrize("seed", range(8))
def test_driving_it_makes_one_to_three_calls_then_answers(seed: int) -> None:
    items: list[Any] = [user("earlier"), FunctionCall(call_id="z", name="look", arguments="{}")]
    items += [user("go")]
    calls = 0
    while True:
        turn = turn_of(calls, items=items, tools=[tool()], seed=seed)
        [(kind, name, text)] = heard(Seeded(drives_tools=True).plan(turn))
        if kind == "message":
            break
        assert (kind, name) == ("function_call", "look")
        items.append(FunctionCall(call_id=f"c{calls}", name=name, arguments=text))
        items.append(FunctionCallOutput(call_id=f"c{calls}", output="ok"))
        calls += 1
    assert 1 <= calls <= 3


def test_seeds_differ_in_their_number_of_calls() -> None:
    done = [FunctionCall(call_id="c", name="look", arguments="{}")]
    kinds = {
        heard(
            Seeded(drives_tools=True).plan(
                turn_of(1, items=[user("go"), *done], tools=[tool()], seed=seed)
            )
        )[0][0]
        for seed in range(20)
    }
    assert kinds == {"message", "function_call"}


@pytest.mark.parametrize("tools", [[], [BEYOND], [Raw(b'{"type":"custom","name":"x"}')]])
def test_what_cannot_be_called_is_not_called(tools: list[Any]) -> None:
    turn = turn_of(items=[user("go")], tools=tools)
    assert heard(Seeded(drives_tools=True).plan(turn))[0][0] == "message"


def test_a_tool_beyond_the_subset_is_passed_over() -> None:
    for seed in range(8):
        turn = turn_of(items=[user("go")], tools=[BEYOND, SHELL, BEYOND], seed=seed)
        assert heard(Seeded(drives_tools=True).plan(turn))[0][:2] == ("function_call", "shell")


@pytest.mark.parametrize("name", ["cmd", "command"])
@pytest.mark.parametrize(
    ("schema", "commands"),
    [
        ({"type": "string", "description": "runs"}, [" ".join(words) for words in HARMLESS]),
        (WORDS, [list(words) for words in HARMLESS]),
        ({"type": "array"}, [list(words) for words in HARMLESS]),
    ],
)
def test_a_shell_gets_harmless_commands(name: str, schema: Any, commands: list[Any]) -> None:
    chosen: list[Any] = []
    for required in ((), (name,)):
        shell = tool("run", required, **{name: schema}, cwd={"type": "string"})
        chosen += [arguments_for(shell, Random(seed)) for seed in range(20)]
    assert all(arguments.keys() == {name} for arguments in chosen)
    assert all(arguments[name] in commands for arguments in chosen)
    assert len({msgspec.json.encode(arguments) for arguments in chosen}) == len(commands)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "enum": ["start"]},
        {"type": "string", "maxLength": 1},
        {"type": "integer"},
    ],
)
def test_a_command_of_another_form_stays_valid(schema: Any) -> None:
    value = arguments_for(tool("run", ("cmd",), cmd=schema), Random(1))["cmd"]
    assert value not in [" ".join(words) for words in HARMLESS]


def test_a_tool_without_parameters_gets_none() -> None:
    assert arguments_for(FunctionTool(name="now"), Random(1)) == {}


def test_arguments_are_an_object() -> None:
    with pytest.raises(CannotFill):
        arguments_for(FunctionTool(name="odd", parameters={"type": "array"}), Random(1))


def test_the_key_tells_driving_apart() -> None:
    assert Seeded().key != Seeded(drives_tools=True).key


def test_the_echo_says_the_last_users_message() -> None:
    items = [user("first"), user("second"), Message(role="developer", content="no")]
    assert heard(Echo().plan(turn_of(items=items))) == [("message", "", "second")]
    assert heard(Echo().plan(turn_of())) == [("message", "", "")]
