"""Server events: one Struct per `type`, encoded once, in the order and shape of the wire.

Numbered events carry `sequence_number`, counted per Response from 0. Unnumbered ones (`error`,
`response.attached`, `response.replay.done`, `response.detached`) are never replayed.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from agentloop.errors import AgentLoopError
from agentloop.wire.items import AnyItem, ContentPart, ReasoningText

MESSAGE_CHARS_MAX = 1_000
PartOut = ContentPart | ReasoningText
PLAIN_TEXT = Raw(b'{"format":{"type":"text"}}')
NO_METADATA = Raw(b"{}")
AUTO = Raw(b'"auto"')


class ErrorBody(Struct):
    type: str
    code: str
    message: str
    param: str | None


class InputDetails(Struct, gc=False):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(Struct, gc=False):
    reasoning_tokens: int = 0


class Usage(Struct):
    """Token counts. Cached is part of input; total is input plus output."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(Struct, kw_only=True):
    """The Response as the wire shows it."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool = False
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    model: str
    output: list[AnyItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: dict[str, Any] = {}
    store: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    text: Raw = PLAIN_TEXT
    tool_choice: Raw = AUTO
    tools: list[Raw] = []
    truncation: str = "disabled"
    usage: Usage | None = None
    usage_total: Usage | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    service_tier: str = "default"
    metadata: Raw = NO_METADATA
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    unconsumed_input: list[AnyItem] = []


class PendingCall(Struct, omit_defaults=True):
    """A call that waits for its output. The last two fields are told on attach only."""

    call_id: str
    name: str
    arguments: str | None = None
    maybe_executed: bool | None = None


class PausedResponse(Struct, kw_only=True):
    """What `response.done` tells of a Response that is still open."""

    id: str
    object: str = "response"
    status: str = "in_progress"
    state: str
    output: list[AnyItem]
    usage: Usage
    usage_total: Usage
    pending_tool_calls: list[PendingCall]


class Event(Struct, tag_field="type"):
    """Base of all events."""


class Numbered(Event):
    """Base of the events that count; the number is filled in when the event is made."""

    sequence_number: int


class ResponseCreated(Numbered, tag="response.created"):
    response: ResponseObject


class ResponseInProgress(Numbered, tag="response.in_progress"):
    response: ResponseObject


class Terminal(Numbered):
    """Base of the one event that ends a Response."""

    response: ResponseObject


class ResponseCompleted(Terminal, tag="response.completed"):
    pass


class ResponseIncomplete(Terminal, tag="response.incomplete"):
    pass


class ResponseFailed(Terminal, tag="response.failed"):
    pass


class ResponseDone(Numbered, tag="response.done"):
    """The loop stops for the client, or says what an append made it go on from."""

    response: PausedResponse


class OutputItemAdded(Numbered, tag="response.output_item.added"):
    output_index: int
    item: AnyItem


class OutputItemDone(Numbered, tag="response.output_item.done"):
    output_index: int
    item: AnyItem


class ContentPartAdded(Numbered, tag="response.content_part.added"):
    item_id: str
    output_index: int
    content_index: int
    part: PartOut


class ContentPartDone(Numbered, tag="response.content_part.done"):
    item_id: str
    output_index: int
    content_index: int
    part: PartOut


class OutputTextDelta(Numbered, tag="response.output_text.delta"):
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: tuple[()] = ()


class OutputTextDone(Numbered, tag="response.output_text.done"):
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: tuple[()] = ()


class ReasoningTextDelta(Numbered, tag="response.reasoning_text.delta"):
    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningTextDone(Numbered, tag="response.reasoning_text.done"):
    item_id: str
    output_index: int
    content_index: int
    text: str


class ArgumentsDelta(Numbered, tag="response.function_call_arguments.delta"):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Numbered, tag="response.function_call_arguments.done"):
    item_id: str
    output_index: int
    name: str
    arguments: str


class CustomInputDelta(Numbered, tag="response.custom_tool_call_input.delta"):
    item_id: str
    output_index: int
    delta: str


class CustomInputDone(Numbered, tag="response.custom_tool_call_input.done"):
    item_id: str
    output_index: int
    input: str


class AppendAccepted(Numbered, tag="response.append.accepted"):
    response_id: str
    event_id: str | None
    pending: list[str]


class InjectCreated(Numbered, tag="response.inject.created"):
    """The acceptance of a `response.inject`."""

    response_id: str
    event_id: str | None
    pending: list[str]


class InjectFailed(Event, tag="response.inject.failed"):
    """The refusal of a `response.inject`, which changed nothing. Its input comes back as it was.

    The number is that of the last numbered event: clients demand one, and this is not replayed.
    """

    sequence_number: int
    response_id: str
    event_id: str | None
    error: ErrorBody
    input: Raw


class Attached(Event, tag="response.attached"):
    response_id: str
    state: str
    attach_epoch: int
    next_seq: int
    pending_tool_calls: list[PendingCall]
    known_keys: list[str]


class ReplayDone(Event, tag="response.replay.done"):
    response_id: str


class Detached(Event, tag="response.detached"):
    response_id: str


def error_body(fault: AgentLoopError) -> ErrorBody:
    """A fault as the wire shows it. What it quotes may be of any length, so it is cut."""
    message = fault.message
    if len(message) > MESSAGE_CHARS_MAX:
        message = message[: MESSAGE_CHARS_MAX - 1] + "…"
    return ErrorBody(fault.kind, fault.code, message, fault.param)


class ErrorEvent(Event, tag="error", omit_defaults=True):
    """One frame for one fault; it echoes the ids that the faulty frame gave."""

    status: int
    error: ErrorBody
    event_id: str | None = None
    response_id: str | None = None
    stream_id: str | None = None
