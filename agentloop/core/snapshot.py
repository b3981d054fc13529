"""The Response object as events and GET show it, and the sums of its usage."""

from __future__ import annotations

from msgspec import Raw

from agentloop.core.records import Config
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
    output: list[AnyItem] | None = None,
    usage: Usage | None = None,
    usage_total: Usage | None = None,
    reason: str | None = None,
    error: dict[str, str] | None = None,
    unconsumed: list[AnyItem] | None = None,
) -> ResponseObject:
    """The Response in this status. Without `output` and `usage` it is one that has just begun."""
    return ResponseObject(
        id=config.id,
        created_at=config.created_at,
        status=status,
        background=config.is_background,
        error=error,
        incomplete_details={"reason": reason} if reason else None,
        instructions=config.instructions,
        model=config.model,
        output=output or [],
        parallel_tool_calls=config.parallel_tool_calls,
        previous_response_id=config.previous_response_id,
        reasoning={"effort": config.effort, "summary": None},
        store=config.store,
        tools=list(config.raw_tools),
        usage=usage,
        usage_total=usage_total,
        max_output_tokens=config.max_output_tokens,
        metadata=Raw(config.metadata),
        prompt_cache_key=config.prompt_cache_key,
        unconsumed_input=unconsumed or [],
    )
