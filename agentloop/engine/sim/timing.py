"""Timing family H ("hosted"): how long a generation takes when only its own request counts.

With n prompt tokens, h of them cached, u = n - h new, and g generated so far:

    time to first token = wait + (o + p*u + r*u*(h + u/2) + e*h) * load * J_p
    gap between steps   = (a + d*(n + g)) * load * J_d, and m tokens come at its end
    load                = 1 + (L - 1) * (running - 1) / max(1, S - 1)
    m                   = 1 + leading successes of up to k trials of chance alpha

    o, p, r, e   prefill_ms, and prefill_ms_per_ new_token, token_pair, cached_token
    a, d, k      step_ms, step_ms_per_context_token, draft_count
    L, S         load_factor_max, slots
    J            log-normal of mean 1 (prefill_jitter, step_jitter)

The prefill is affine in new tokens plus a cross term with the context, and a decode step affine in
the context: both fit public kernel profiles of vLLM to a few per cent. The load factor is that of
llm-d-inference-sim. Geometric acceptance is what public EAGLE-3 measurements show; alpha walks
between two states, *hard* and *easy*, which is what makes bursts.

Times are milliseconds where they are parameters and whole nanoseconds where they are deadlines.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, repeat
from math import exp
from operator import mul
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agentloop.engine.sim.profiles import Profile

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def load_factor(profile: Profile, running: int) -> float:
    """How much slower everything is with that many generations running; at least 1."""
    return 1.0 + (profile.load_factor_max - 1.0) * (running - 1) / max(1, profile.slots - 1)


def prefill_ms(profile: Profile, new_tokens: int, cached_tokens: int) -> float:
    """A prefill without load and jitter."""
    pairs = new_tokens * (cached_tokens + new_tokens / 2)
    return (
        profile.prefill_ms
        + profile.prefill_ms_per_new_token * new_tokens
        + profile.prefill_ms_per_token_pair * pairs
        + profile.prefill_ms_per_cached_token * cached_tokens
    )


def step_ms(profile: Profile, context_tokens: int) -> float:
    """A decode step without load and jitter."""
    return profile.step_ms + profile.step_ms_per_context_token * context_tokens


class _Acceptance(NamedTuple):
    """One state of the chain, per number of tokens."""

    survival: tuple[float, ...]  # chance that at least 1, 2, … k drafts are accepted
    leaving: tuple[float, ...]  # chance that the state changes within 0, 1, … k + 1 tokens


def _acceptance(alpha: float, dwell_tokens: float, drafts: int) -> _Acceptance:
    stay = 1.0 - 1.0 / dwell_tokens
    return _Acceptance(
        survival=tuple(accumulate(repeat(alpha, drafts), mul)),
        leaving=tuple(1.0 - stay**tokens for tokens in range(drafts + 2)),
    )


@lru_cache
def _states(profile: Profile) -> tuple[_Acceptance, _Acceptance]:
    drafts = profile.draft_count
    return (
        _acceptance(profile.acceptance_hard, profile.dwell_tokens_hard, drafts),
        _acceptance(profile.acceptance_easy, profile.dwell_tokens_easy, drafts),
    )


class Pace:
    """What is random about one generation: its step sizes and its jitter.

    Each purpose draws from its own stream, seeded by the generation's seed alone, so that neither
    another generation nor another purpose can shift it, and two designs with the same seed get the
    same steps.
    """

    def __init__(self, profile: Profile, seed: int) -> None:
        self._profile = profile
        self._seed = seed
        if profile.draft_count:
            self._drafts = self._stream("drafts")
            dwell = profile.dwell_tokens_hard + profile.dwell_tokens_easy
            self._is_easy = self._drafts.random() * dwell < profile.dwell_tokens_easy
        if profile.step_jitter:
            self._steps = self._stream("steps")

    def prefill_jitter(self) -> float:
        """The factor J_p."""
        sigma = self._profile.prefill_jitter
        return _log_normal(self._stream("prefill"), sigma) if sigma else 1.0

    def sizes(self, tokens: int, steps_max: int, is_easy: bool) -> list[int]:
        """Tokens of each coming step: at most `steps_max` steps and `tokens` tokens together.

        Easy text puts the chain into its easy state and holds it there.
        """
        if not self._profile.draft_count:
            return [1] * min(tokens, steps_max)
        if is_easy:
            self._is_easy = True
        sizes: list[int] = []
        while tokens > 0 and len(sizes) < steps_max:
            size = min(self._accepted(is_easy), tokens)
            sizes.append(size)
            tokens -= size
        return sizes

    def gaps_ns(self, sizes: list[int], context_tokens: int) -> list[int]:
        """The time before each of these steps without load; empty where steps take no time."""
        profile = self._profile
        if profile.is_instant:
            return []
        sigma = profile.step_jitter
        gaps = []
        for size in sizes:
            gap_ms = step_ms(profile, context_tokens)
            if sigma:
                gap_ms *= _log_normal(self._steps, sigma)
            gaps.append(round(gap_ms * NS_PER_MS))
            context_tokens += size
        return gaps

    def _accepted(self, is_held: bool) -> int:
        """One step's tokens; then the state may change, unless it is held."""
        state = _states(self._profile)[self._is_easy]
        draw = self._drafts.random()
        size = 1
        for chance in state.survival:
            if draw >= chance:
                break
            size += 1
        if not is_held and self._drafts.random() < state.leaving[size]:
            self._is_easy = not self._is_easy
        return size

    def _stream(self, purpose: str) -> Random:
        return Random(f"{self._seed}:{purpose}")  # text seeds do not depend on PYTHONHASHSEED


def _log_normal(stream: Random, sigma: float) -> float:
    """A factor of mean 1."""
    return exp(stream.gauss(-sigma * sigma / 2, sigma))
