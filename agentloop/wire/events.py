"""Server events: one Struct per `type`, encoded once, in the order and shape of the wire.

Numbered events carry `sequence_number`, counted per Response from 0. Unnumbered ones (`error`,
`response.attached`, `response.replay.done`, `response.detached`) are never replayed.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from agentloop.wire.items import AnyItem, ContentPart, ReasoningText

PartOut = ContentPart | ReasoningText
PLAIN_TEXT = Raw(b'{"format":{"type":"text"}}')


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
    tool_choice: Raw | str = "auto"
    tools: list[Raw] = []
    truncation: str = "disabled"
    usage: Usage | None = None
    usage_total: Usage | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    service_tier: str = "default"
    metadata: dict[str, Any] = {}
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


class ResponseCreated(Event, tag="response.created"):
    sequence_number: int
    response: ResponseObject


class ResponseInProgress(Event, tag="response.in_progress"):
    sequence_number: int
    response: ResponseObject


class ResponseCompleted(Event, tag="response.completed"):
    sequence_number: int
    response: ResponseObject


class ResponseIncomplete(Event, tag="response.incomplete"):
    sequence_number: int
    response: ResponseObject


class ResponseFailed(Event, tag="response.failed"):
    sequence_number: int
    response: ResponseObject


class ResponseDone(Event, tag="response.done"):
    """The loop stops for the client, or says what an append made it go on from."""

    sequence_number: int
    response: PausedResponse


class OutputItemAdded(Event, tag="response.output_item.added"):
    sequence_number: int
    output_index: int
    item: AnyItem


class OutputItemDone(Event, tag="response.output_item.done"):
    sequence_number: int
    output_index: int
    item: AnyItem


class ContentPartAdded(Event, tag="response.content_part.added"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: PartOut


class ContentPartDone(Event, tag="response.content_part.done"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: PartOut


class OutputTextDelta(Event, tag="response.output_text.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: tuple[()] = ()


class OutputTextDone(Event, tag="response.output_text.done"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: tuple[()] = ()


class ReasoningTextDelta(Event, tag="response.reasoning_text.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningTextDone(Event, tag="response.reasoning_text.done"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    text: str


class ArgumentsDelta(Event, tag="response.function_call_arguments.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Event, tag="response.function_call_arguments.done"):
    sequence_number: int
    item_id: str
    output_index: int
    name: str
    arguments: str


class CustomInputDelta(Event, tag="response.custom_tool_call_input.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    delta: str


class CustomInputDone(Event, tag="response.custom_tool_call_input.done"):
    sequence_number: int
    item_id: str
    output_index: int
    input: str


class AppendAccepted(Event, tag="response.append.accepted"):
    sequence_number: int
    response_id: str
    event_id: str | None
    pending: list[str]


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


class ErrorBody(Struct):
    type: str
    code: str
    message: str
    param: str | None


class ErrorEvent(Event, tag="error", omit_defaults=True):
    """One frame for one fault; it echoes the ids that the faulty frame gave."""

    status: int
    error: ErrorBody
    event_id: str | None = None
    response_id: str | None = None
    stream_id: str | None = None
