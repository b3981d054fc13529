"""The echo: the last user's message again."""

from __future__ import annotations

from agentloop.behaviors.api import Turn
from agentloop.behaviors.say import last_user_text, say
from agentloop.engine.api import Script
from agentloop.tokens.render import SaidText


class Echo:
    """Says the last user message's text."""

    key = "echo"

    def plan(self, turn: Turn) -> Script:
        return say(SaidText(last_user_text(turn.context.items())))
