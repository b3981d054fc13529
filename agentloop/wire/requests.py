"""Client messages, as they come in. Unknown fields are ignored; items stay raw until admission.

One Struct per message type; `ClientMessage` is the tagged union that the codec decodes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

NO_ITEMS = Raw(b"[]")


class AgentLoopOptions(Struct, omit_defaults=True, frozen=True):
    """`agent_loop`: what a client may ask of the long-lived Response.

    Attributes:
        final: a turn without calls leaves the Response idle (`hold`) or ends it (`complete`).
        detach_ttl_s: seconds the Response outlives its link; 0 means not at all.
        tool_timeout_s: seconds a suspension may last; None means for ever.
        on_tool_timeout: the Response ends (`incomplete`) or the model is told (`result`).
        engine_retries: how often one turn may be tried again after a retryable engine failure.
    """

    final: Literal["hold", "complete"] | None = None
    detach_ttl_s: float = 0.0
    tool_timeout_s: float | None = None
    on_tool_timeout: Literal["incomplete", "result"] = "incomplete"
    engine_retries: int = 3


class ScriptedCall(Struct, forbid_unknown_fields=True, frozen=True):
    """A call in a script. `arguments` may be a string, malformed on purpose."""

    name: str
    arguments: dict[str, Any] | str = {}


class ScriptedRepeat(Struct, forbid_unknown_fields=True, frozen=True):
    """`text` over and over until it makes `tokens` tokens."""

    text: str
    tokens: int


class ScriptedPart(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """One element of a scripted turn: exactly one field is set (`times` goes with `fail`)."""

    reasoning: str | None = None
    text: str | None = None
    call: ScriptedCall | None = None
    stall_ms: float | None = None
    fail: str | None = None
    times: int = 1
    raw_tokens: list[int] | None = None
    repeat: ScriptedRepeat | None = None


class Simulation(Struct, omit_defaults=True, frozen=True):
    """`simulation`: what the simulated model says, turn by turn, and how fast."""

    turns: list[list[ScriptedPart]] = []
    profile: str | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    turn: int | None = None


class Create(Struct, tag_field="type", tag="response.create", kw_only=True, omit_defaults=True):
    """`response.create`: the fields of `POST /v1/responses`, flat."""

    model: str
    input: Raw = NO_ITEMS
    instructions: str | None = None
    tools: list[Raw] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool = False
    max_output_tokens: int | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    prompt_cache_key: str | None = None
    event_id: str | None = None
    stream_id: str | None = None
    agent_loop: AgentLoopOptions | None = None
    simulation: Simulation | None = None


class Append(Struct, tag_field="type", tag="response.append", kw_only=True, omit_defaults=True):
    """`response.append`: tool outputs and user messages for an open Response."""

    input: Raw
    response_id: str | None = None
    stream_id: str | None = None
    event_id: str | None = None
    client_metadata: Raw | UnsetType = UNSET


class Inject(Struct, tag_field="type", tag="response.inject", kw_only=True, omit_defaults=True):
    """`response.inject`: an append by id, in the inject dialect's words."""

    response_id: str
    input: Raw
    stream_id: str | None = None
    event_id: str | None = None


class Cancel(Struct, tag_field="type", tag="response.cancel", kw_only=True, omit_defaults=True):
    """`response.cancel`: end a Response now."""

    response_id: str | None = None
    stream_id: str | None = None
    event_id: str | None = None


class Close(Struct, tag_field="type", tag="response.close", kw_only=True, omit_defaults=True):
    """`response.close`: end a Response well, once nothing is pending."""

    response_id: str | None = None
    stream_id: str | None = None
    event_id: str | None = None


class Attach(Struct, tag_field="type", tag="response.attach", kw_only=True, omit_defaults=True):
    """`response.attach`: take over or watch a Response, from a sequence number on."""

    response_id: str
    stream_id: str | None = None
    starting_after: int = -1
    observe: bool = False
    event_id: str | None = None


ClientMessage = Create | Append | Inject | Cancel | Close | Attach
