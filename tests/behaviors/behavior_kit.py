"""A turn to plan, and what a client hears of the plan."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from msgspec import Raw

from agentloop.behaviors.api import Turn
from agentloop.core.context import EMPTY
from agentloop.engine.api import Sample, Script
from agentloop.tokens.parse import Closed, Opened, Parser
from agentloop.wire.items import AnyItem, FunctionTool, Message


def turn_of(
    number: int = 0,
    *,
    attempt: int = 0,
    items: Sequence[AnyItem] = (),
    tools: Sequence[FunctionTool | Raw] = (),
    seed: int = 0,
) -> Turn:
    context = EMPTY.extend(items, array("I"))
    return Turn(number, attempt, context, tuple(tools), seed)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def ids_of(script: Script) -> list[int]:
    return [each for part in script.parts if isinstance(part, Sample) for each in part.ids]


def heard(script: Script) -> list[tuple[str, str, str]]:
    """Kind, name and text of each item that the script makes."""
    parser = Parser()
    parsed = parser.feed(ids_of(script)) + parser.finish()
    opened = [event for event in parsed if isinstance(event, Opened)]
    closed = [event for event in parsed if isinstance(event, Closed)]
    return [(o.kind, o.name, c.text) for o, c in zip(opened, closed, strict=True)]
