"""The designs that a link can ask for, by the word in `?protocol=`: a new one is a line here."""

from __future__ import annotations

from agentloop.loop.design import Design
from agentloop.serve.append import WS_APPEND
from agentloop.serve.hosted import HOSTED
from agentloop.serve.inject import WS_INJECT

DESIGNS: dict[str, Design] = {"append": WS_APPEND, "inject": WS_INJECT, "hosted": HOSTED}
