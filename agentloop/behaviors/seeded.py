"""The default agent: it answers in text, and calls a client's tools only where that is wanted.

What it says follows from the seed, the turn's number and the last user's text. Driving tools, it
first makes one to three calls, one a turn. Arguments are valid for the tool's JSON schema; a tool
that looks like a shell gets a command that changes nothing; a tool whose schema is beyond
`agentloop.behaviors.schema` is never called.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from random import Random
from typing import Final

import msgspec
from msgspec import Raw

from agentloop.behaviors.api import Turn
from agentloop.behaviors.say import is_from_user, last_user_text, say
from agentloop.behaviors.schema import CannotFill, Schema, constraints_of, fill, parse_schema
from agentloop.engine.api import Script
from agentloop.tokens.render import SaidCall, SaidText
from agentloop.wire.items import AnyItem, CallItem, FunctionTool

HARMLESS: Final = (("echo", "agentloop"), ("pwd",), ("ls",))

_CALLS_MAX: Final = 3
_COMMAND_NAMES: Final = ("cmd", "command")
_TOPIC_WORDS_MAX: Final = 12
_SENTENCES: Final = (
    (
        "I read the request and looked at what it touches.",
        "Here is what I found after going through it step by step.",
        "I have worked through this, and the short answer comes first.",
    ),
    (
        "The change is small and stays within one function; its callers need nothing new.",
        "The behaviour you describe is what the code says, so the code is what has to change.",
        "Two places do the same work, and only one of them handles the empty case.",
    ),
    (
        "A test that fails before the change and passes after it would settle the matter.",
        "Nothing else depends on the old result, as far as I can see from here.",
        "If you want it, I can go on with the next step from here.",
    ),
)


class Seeded:
    """The seeded agent.

    Args:
        drives_tools: call the client's function tools before answering.
    """

    def __init__(self, *, drives_tools: bool = False) -> None:
        self._drives_tools = drives_tools
        self.key = "seeded-driving" if drives_tools else "seeded"

    def plan(self, turn: Turn) -> Script:
        items = turn.context.items()
        text = last_user_text(items)
        if self._drives_tools and _calls_made(items) < _calls_wanted(turn.seed, text):
            call = choose_call(turn.tools, Random(f"call:{turn.seed}:{turn.number}:{text}"))
            if call is not None:
                return say(call)
        return say(SaidText(_answer(text, Random(f"text:{turn.seed}:{turn.number}:{text}"))))


def _calls_wanted(seed: int, text: str) -> int:
    return Random(f"count:{seed}:{text}").randint(1, _CALLS_MAX)


def _calls_made(items: Sequence[AnyItem]) -> int:
    """Calls since the user last spoke."""
    since = takewhile(lambda item: not is_from_user(item), reversed(items))
    return sum(isinstance(item, CallItem) for item in since)


def _answer(text: str, source: Random) -> str:
    topic = " ".join(text.split()[:_TOPIC_WORDS_MAX])
    about = [f"You asked: {topic}."] if topic else []
    return " ".join([*about, *(source.choice(each) for each in _SENTENCES)])


def choose_call(tools: Sequence[FunctionTool | Raw], source: Random) -> SaidCall | None:
    """A valid call of one of the function tools; None where there is none to call."""
    functions = [tool for tool in tools if isinstance(tool, FunctionTool)]
    for tool in source.sample(functions, len(functions)):
        try:
            arguments = arguments_for(tool, source)
        except CannotFill:
            continue
        return SaidCall(tool.name, msgspec.json.encode(arguments).decode())
    return None


def arguments_for(tool: FunctionTool, source: Random) -> dict[str, object]:
    """Arguments that are valid for the tool's schema, and harmless for a shell.

    Raises:
        CannotFill: the schema is beyond what can be filled.
    """
    schema = parse_schema(tool.parameters or {"type": "object"})
    arguments = fill(schema, source)
    if not isinstance(arguments, dict):
        raise CannotFill("the arguments are not an object")
    words = source.choice(HARMLESS)
    command = {"string": " ".join(words), "array": list(words)}
    for name in _COMMAND_NAMES:
        form = _form_of(schema.properties.get(name, False))
        if form in command:
            arguments[name] = command[form]
    return arguments


def _form_of(schema: bool | Schema) -> str:
    """`string` or `array` (of strings) where the schema takes any of them; else empty."""
    if not isinstance(schema, Schema):
        return ""
    if schema.type == "string" and constraints_of(schema) == {"type"}:
        return "string"
    if schema.type == "array" and constraints_of(schema) <= {"type", "items"}:
        is_of_strings = schema.items is True or _form_of(schema.items) == "string"
        return "array" if is_of_strings else ""
    return ""
