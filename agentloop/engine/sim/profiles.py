"""Named engine timings: the parameters of timing family H, one table.

Each number is marked by where it comes from:

    [S] sourced      a public document says so
    [F] fitted       fitted to public data
    [A] assumption   no public number: sweep it before a conclusion rests on it

TraceLab is a public set of 216,823 hosted Codex steps seen from the client; its decode times fit
`13.0 ms + 2.8e-5 ms per context token`, 65 tokens/s at about 85,000 tokens of context.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import fields, replace

from agentloop.errors import ConfigError


class Profile(Struct, frozen=True, kw_only=True):
    """One engine's timing and capacity. `timing` holds the formulas.

    Attributes:
        name: its name in the table.
        step_ms: one decode step of a sequence without context.
        step_ms_per_context_token: what each token of context adds to a step.
        draft_count: tokens drafted per step by speculative decoding; a step emits 1 to this + 1.
        acceptance_hard, acceptance_easy: chance that a draft is accepted, in each of two states.
        dwell_tokens_hard, dwell_tokens_easy: mean tokens until the state changes.
        prefill_ms: the fixed part of a prefill.
        prefill_ms_per_new_token: for each prompt token that is not cached.
        prefill_ms_per_token_pair: attention: for each new token, per token before it.
        prefill_ms_per_cached_token: for each cached token.
        load_factor_max: how much slower everything is when all slots are taken.
        prefill_jitter, step_jitter: sigma of a log-normal factor of mean 1.
        slots: generations that run at once.
        queue_requests_max: generations that wait for a slot.
        context_tokens_max: prompt and output together.
        cache_tokens: capacity of the prefix cache.
        block_tokens: the unit of the prefix cache.
        idle_ttl_s: how long an unused block is kept.
    """

    name: str
    step_ms: float = 0.0
    step_ms_per_context_token: float = 0.0
    draft_count: int = 0
    acceptance_hard: float = 0.0
    acceptance_easy: float = 0.0
    dwell_tokens_hard: float = 1.0
    dwell_tokens_easy: float = 1.0
    prefill_ms: float = 0.0
    prefill_ms_per_new_token: float = 0.0
    prefill_ms_per_token_pair: float = 0.0
    prefill_ms_per_cached_token: float = 0.0
    load_factor_max: float = 1.0
    prefill_jitter: float = 0.0
    step_jitter: float = 0.0
    slots: int
    queue_requests_max: int = 1000
    context_tokens_max: int
    cache_tokens: int
    block_tokens: int = 128
    idle_ttl_s: float

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"profile {self.name}: {name} must be at least {least}")
        for name in ("acceptance_hard", "acceptance_easy"):
            if getattr(self, name) > 1:
                raise ConfigError(f"profile {self.name}: {name} must be at most 1")

    @property
    def is_instant(self) -> bool:
        """A step takes no time at all, whatever the context."""
        return self.step_ms == 0 and self.step_ms_per_context_token == 0


_AT_LEAST_ONE = {
    "dwell_tokens_hard", "dwell_tokens_easy", "load_factor_max", "slots", "context_tokens_max",
    "block_tokens",
}  # fmt: skip
_LEAST = {
    field.name: int(field.name in _AT_LEAST_ONE)
    for field in fields(Profile)
    if field.name != "name"
}

GPU65 = Profile(
    name="gpu65",
    step_ms=13.0,
    step_ms_per_context_token=2.8e-5,
    prefill_ms=60.0,
    prefill_ms_per_new_token=0.030,
    prefill_ms_per_token_pair=1.0e-7,
    prefill_ms_per_cached_token=0.001,
    prefill_jitter=0.10,
    step_jitter=0.07,
    slots=64,
    context_tokens_max=400_000,
    cache_tokens=8_000_000,
    idle_ttl_s=600.0,
)
"""A hosted flagship on GPUs, about 65 tokens/s.

Step times: TraceLab's line [F]. New tokens: OpenAI's published ratios of cached to uncached time
to first token, scaled by TraceLab's slope [F]. Blocks of 128 tokens: OpenAI's caching guide [S].
Jitter of 5 to 15 %: llm-d-inference-sim [S]. Queue: its default [S]. Fixed prefill part, cached
tokens (the engine's share), token pairs, slots, cache size, context and idle time: [A].
"""

SPARK1000 = Profile(
    name="spark1000",
    step_ms=2.0,
    step_ms_per_context_token=2.0e-6,
    draft_count=7,
    acceptance_hard=0.38,
    acceptance_easy=0.97,
    dwell_tokens_hard=96.0,
    dwell_tokens_easy=32.0,
    prefill_ms=25.0,
    prefill_ms_per_new_token=0.020,
    prefill_ms_per_token_pair=5.0e-8,
    prefill_ms_per_cached_token=0.0005,
    prefill_jitter=0.10,
    step_jitter=0.05,
    slots=32,
    context_tokens_max=131_072,
    cache_tokens=2_000_000,
    idle_ttl_s=300.0,
)
"""An accelerated engine: about 1,000 tokens/s with bursts to 4,000.

Both speeds and the 128k context were announced for Codex-Spark [S, through restatements]; 300 s of
idle time and 128-token blocks are in Cerebras' caching page [S]. The step, drafts, acceptance and
dwell are [A], shaped so that both published speeds come out. All other numbers are [A]: no prefill
rate, batch size or burst structure of such an engine is public.
"""

SPARK4000 = replace(
    SPARK1000,
    name="spark4000",
    step_ms_per_context_token=0.0,
    acceptance_hard=1.0,
    acceptance_easy=1.0,
    step_jitter=0.0,
)
"""Hypothetical [A]: the published burst for ever, 8 tokens in each 2-ms step."""

INSTANT = Profile(
    name="instant",
    slots=10_000,
    queue_requests_max=10_000,
    context_tokens_max=100_000_000,
    cache_tokens=100_000_000,
    idle_ttl_s=3600.0,
)
"""No engine time at all [A]: one token a step, so that the cost of an event can be measured."""

PROFILES = {each.name: each for each in (GPU65, SPARK1000, SPARK4000, INSTANT)}


def profile(name: str) -> Profile:
    """The profile of that name.

    Raises:
        ConfigError: there is none; the message names those there are.
    """
    try:
        return PROFILES[name]
    except KeyError:
        known = ", ".join(PROFILES)
        raise ConfigError(f"no profile {name!r}; known: {known}", param="profile") from None
