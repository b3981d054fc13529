"""The Response object as events and GET show it, and the sums of its usage."""

from __future__ import annotations

from agentloop.core.records import Config, Ended
from agentloop.wire.events import InputDetails, OutputDetails, ResponseObject, Usage
from agentloop.wire.items import AnyItem


def usage(input_tokens: int, cached_tokens: int, output_tokens: int, reasoning: int) -> Usage:
    """One turn's usage. Cached and reasoning tokens are parts of input and output."""
    return Usage(
        input_tokens,
        InputDetails(cached_tokens),
        output_tokens,
        OutputDetails(reasoning),
        input_tokens + output_tokens,
    )


def add_usage(one: Usage, other: Usage) -> Usage:
    """The sum of two."""
    return usage(
        one.input_tokens + other.input_tokens,
        one.input_tokens_details.cached_tokens + other.input_tokens_details.cached_tokens,
        one.output_tokens + other.output_tokens,
        one.output_tokens_details.reasoning_tokens + other.output_tokens_details.reasoning_tokens,
    )


NO_USAGE = usage(0, 0, 0, 0)


def snapshot(
    config: Config,
    status: str,
    *,
    ended: Ended | None = None,
    output: list[AnyItem] | None = None,
    usage: Usage | None = None,
    usage_total: Usage | None = None,
) -> ResponseObject:
    """The Response in this status. Without `output` and `usage` it is one that has just begun."""
    return ResponseObject(
        id=config.id,
        created_at=config.created_at,
        status=status,
        background=config.is_background,
        error=_error_of(ended),
        incomplete_details=_details_of(ended),
        instructions=config.instructions,
        model=config.model,
        output=output or [],
        parallel_tool_calls=config.parallel_tool_calls,
        previous_response_id=config.previous_response_id,
        reasoning={"effort": config.effort, "summary": None},
        store=config.store,
        temperature=config.temperature,
        top_p=config.top_p,
        tool_choice=config.tool_choice,
        tools=list(config.raw_tools),
        usage=usage,
        usage_total=usage_total,
        max_output_tokens=config.max_output_tokens,
        metadata=config.metadata,
        prompt_cache_key=config.prompt_cache_key,
        unconsumed_input=ended.unconsumed if ended else [],
    )


def _error_of(ended: Ended | None) -> dict[str, str] | None:
    if ended is None or ended.error_code is None:
        return None
    return {"code": ended.error_code, "message": ended.error_message or ended.error_code}


def _details_of(ended: Ended | None) -> dict[str, str] | None:
    if ended is None or ended.kind != "incomplete" or ended.reason is None:
        return None
    return {"reason": ended.reason}
