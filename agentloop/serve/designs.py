"""The designs that this server speaks, by name. A new one is a file and a line here."""

from __future__ import annotations

from agentloop.loop.design import Design
from agentloop.serve.append import WS_APPEND
from agentloop.serve.hosted import HOSTED

DESIGNS: dict[str, Design] = {design.name: design for design in (WS_APPEND, HOSTED)}
