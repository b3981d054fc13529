"""From what is said to an engine's script; and what the user said last."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.engine.api import Sample, Script
from agentloop.tokens.render import Said, render_turn
from agentloop.wire.items import AnyItem, Message, text_of


def say(*said: Said) -> Script:
    """The script of one turn without stalls and faults."""
    return Script(tuple(Sample(tuple(ids)) for ids in render_turn(said)))


def is_from_user(item: AnyItem) -> bool:
    """Whether the item is a user's message."""
    return isinstance(item, Message) and item.role == "user"


def last_user_text(items: Sequence[AnyItem]) -> str:
    """The text of the last user's message; empty where there is none."""
    for item in reversed(items):
        if isinstance(item, Message) and is_from_user(item):
            return text_of(item.content)
    return ""
