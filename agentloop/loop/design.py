"""A design: one API contract, as a small policy over the same loop."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Design(Struct, frozen=True, kw_only=True):
    """What distinguishes a design on the server.

    Attributes:
        parks: a client's call suspends the Response; else it ends it, handing the call back.
        says_done: `response.done` ends each stretch of work.
        final: what a turn without calls does where the request does not say.
        is_final_fixed: a request has no say in `final`.
        agent_name: the agent that output items are said to be of; empty names none.
        runs_functions: the server's own table of function tools runs the calls.
    """

    name: str
    parks: bool
    says_done: bool
    final: Literal["hold", "complete"]
    is_final_fixed: bool = False
    agent_name: str = ""
    runs_functions: bool = False
