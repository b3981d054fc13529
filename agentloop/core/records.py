"""Records: everything that ever happened to a Response, in order.

A record is what the journal keeps and what events are made from, so what was said and what is
remembered cannot differ. Each record's `kind` is the key into the transition table. `first_seq`
and `event_count` say which numbered events it makes; a replay asserts them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

from agentloop.core.context import Entry
from agentloop.engine.api import TokenIds
from agentloop.wire.events import AUTO, NO_METADATA
from agentloop.wire.items import AnyItem, FunctionTool
from agentloop.wire.requests import AgentLoopOptions

Kind = Literal[
    "created", "turn_started", "sampled", "turn_ended", "hosted",
    "suspended", "idled", "continued", "appended", "resumed", "expired",
    "kept_alive", "attached", "detached",
    "completed", "incomplete", "failed", "cancelled",
]  # fmt: skip


class Config(Struct, kw_only=True, frozen=True):
    """What a create fixed for the Response's whole life.

    Attributes:
        created_at: whole seconds since 1970.
        parks: a client's call suspends the Response (else it ends it, handing the call back).
        says_done: `response.done` is sent when the loop stops for the client.
        agent_name: the agent that output items are said to be of; empty names none.
        hosted: names of the tools that the server runs itself.
        seed: seeds the behavior and the engine.
    """

    id: str
    created_at: int
    model: str
    parks: bool
    says_done: bool
    agent_name: str = ""
    hosted: frozenset[str] = frozenset()
    options: AgentLoopOptions = AgentLoopOptions()
    instructions: str | None = None
    tools: tuple[FunctionTool | Raw, ...] = ()
    raw_tools: tuple[Raw, ...] = ()
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    store: bool = True
    is_background: bool = False
    max_output_tokens: int | None = None
    effort: str = "medium"
    tool_choice: Raw = AUTO
    temperature: float = 1.0
    top_p: float = 1.0
    metadata: Raw = NO_METADATA
    prompt_cache_key: str | None = None
    seed: int = 0

    @property
    def is_detachable(self) -> bool:
        """Whether the Response outlives its link."""
        return self.options.detach_ttl_s > 0


class Record(Struct, kw_only=True):
    """Base of all records."""

    kind: Kind
    first_seq: int = 0
    event_count: int = 0


class Created(Record, tag=True):
    """The Response exists. `head` stands before its context; `entries` is its admitted input."""

    config: Config
    head: TokenIds[int]
    entries: list[Entry]
    attach_epoch: int


class TurnStarted(Record, tag=True):
    """The engine may be called. Attempts after the first continue the recorded ids."""

    turn: int
    attempt: int
    prompt_tokens: int


class Sampled(Record, tag=True):
    """The ids of engine steps, and how many of them each step made; the parser makes the events.

    Compact, since these are nearly all there is, and kept for the Response's life.
    """

    ids: TokenIds[int]
    sizes: bytes


class TurnEnded(Record, tag=True):
    """The engine finished. `reason` is its own: `stop` or `length`."""

    reason: str
    cached_tokens: int


class Hosted(Record, tag=True):
    """A hosted call's result; an output item of its own where it has an item."""

    call_id: str
    output: Entry


class Stopped(Record, tag=True):
    """The loop stops for the client (`suspended`, `idled`), or goes straight on (`continued`)."""


class Appended(Record, tag=True):
    """An accepted append: new outputs by call id, and messages. `resumed`: the loop goes on.

    `is_inject`: it came as a `response.inject`, and is accepted in that dialect's words.
    """

    outputs: dict[str, Entry]
    messages: list[Entry]
    event_id: str | None
    fingerprint: bytes
    is_inject: bool = False


class Unheld(Record, tag=True):
    """`resumed`: no create is to take over any more, so what waits gets a turn."""


class Expired(Record, tag=True):
    """The tool timeout gave each pending call a result, by call id."""

    outputs: dict[str, Entry]


class KeptAlive(Record, tag=True):
    """Nothing was said for a while although the Response is at work."""


class AttachmentChanged(Record, tag=True):
    """`attached` or `detached`, under this epoch."""

    attach_epoch: int


class Ended(Record, tag=True):
    """The one terminal. Unanswered calls count as cancelled; unconsumed input is listed."""

    reason: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    unanswered: list[str] = []
    unconsumed: list[AnyItem] = []


AnyRecord = (
    Created
    | TurnStarted
    | Sampled
    | TurnEnded
    | Hosted
    | Stopped
    | Appended
    | Unheld
    | Expired
    | KeptAlive
    | AttachmentChanged
    | Ended
)
