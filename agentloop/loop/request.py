"""What the engine is asked for: the tokens after what it holds, and what is still to be said."""

from __future__ import annotations

from agentloop.core.response import Response
from agentloop.engine.api import GenRequest, Part, Prefix, Sample, Script

OUTPUT_TOKENS_MAX = 128_000
_SEED_STRIDE = 1_000_003  # keeps the turns of neighbouring seeds apart


def generation_request(
    response: Response, prefix: Prefix | None, script: Script, attempt: int
) -> GenRequest:
    """The request for one attempt at the current turn.

    Args:
        prefix: what the engine still holds; None asks with the full ids.
        script: what a simulated model says in the whole turn; what is recorded is skipped.
    """
    config = response.config
    ids = response.prompt_from(prefix.token_count if prefix else 0)
    recorded = response.transcript.turn_ids if attempt else ()
    ids.extend(recorded)
    return GenRequest(
        id=f"{response.id}/{response.turn}/{attempt}",
        prefix=prefix,
        ids=ids,
        script=skip_ids(script, len(recorded)),
        max_output_tokens=config.max_output_tokens or OUTPUT_TOKENS_MAX,
        seed=config.seed * _SEED_STRIDE + response.turn,
        output_count=len(recorded),
    )


def skip_ids(script: Script, count: int) -> Script:
    """The script after its first `count` ids. Stalls and faults before that point are behind."""
    if count == 0:
        return script
    parts: list[Part] = []
    for part in script.parts:
        if isinstance(part, Sample) and count > 0:
            skipped, count = min(count, len(part.ids)), count - len(part.ids)
            if skipped < len(part.ids):
                parts.append(Sample(part.ids[skipped:], part.is_easy))
        elif count <= 0:
            parts.append(part)
    return Script(tuple(parts))
