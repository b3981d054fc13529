"""What a behavior is: it decides what the model says."""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw, Struct

from agentloop.core.context import Context
from agentloop.engine.api import Script
from agentloop.wire.items import FunctionTool


class Turn(Struct, frozen=True):
    """What a behavior may know of the turn it plans.

    Attributes:
        number: model turns in the context so far; the same in every design.
        attempt: how often this turn was planned before, counted by the server; faults look at it.
        context: items and tokens up to the turn.
        tools: the tools that the request listed.
        seed: the request's seed, or the server's.
    """

    number: int
    attempt: int
    context: Context
    tools: tuple[FunctionTool | Raw, ...]
    seed: int


class Behavior(Protocol):
    """Plans turns. Pure: the same turn gives the same script."""

    @property
    def key(self) -> str:
        """Names what is said: equal keys plan equal scripts."""

    def plan(self, turn: Turn) -> Script:
        """What the model says in this turn, after `TURN_START`."""
