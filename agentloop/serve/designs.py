"""The designs that a link can ask for, by the word in `?protocol=`: a new one is a line here."""

from __future__ import annotations

from agentloop.loop.design import Design
from agentloop.serve.append import WS_APPEND
from agentloop.serve.hosted import HOSTED

DESIGNS: dict[str, Design] = {"append": WS_APPEND, "hosted": HOSTED}
