"""The engine's interface: token ids in, steps out.

An engine knows neither the wire nor behaviors. `submit` returns at once; steps come through a
synchronous, non-blocking sink, because a queue per stream costs ten times as much per step, and
all that are due come in one call.
Real and simulated engines implement the same `Engine`.
"""

from __future__ import annotations

from array import array
from typing import Protocol

from msgspec import Struct

from agentloop.errors import EngineFault

TokenIds = array  # typecode "I": compact, and invisible to the garbage collector


class PrefixLost(EngineFault):
    """The engine no longer holds the named prefix: resubmit once with the full ids."""

    def __init__(self, have_tokens: int) -> None:
        super().__init__(
            f"the engine holds {have_tokens} tokens of the prefix",
            code="prefix_lost",
            is_retryable=True,
        )
        self.have_tokens = have_tokens


class Stall(Struct, frozen=True, tag="stall"):
    """The engine waits this long, zero or more, before the next ids."""

    stall_s: float


class Fault(Struct, frozen=True, tag="fault"):
    """The engine fails here with this code."""

    code: str
    is_retryable: bool


class Sample(Struct, frozen=True, tag="sample"):
    """The model samples these ids. `is_easy` text (copied code) bursts under speculation."""

    ids: tuple[int, ...]
    is_easy: bool = False


Part = Sample | Stall | Fault


class Script(Struct, frozen=True):
    """What a simulated model says in one turn, in order. Empty means: it stops at once."""

    parts: tuple[Part, ...] = ()


class Prefix(Protocol):
    """An opaque handle on tokens whose keys and values the engine may still hold.

    Attributes:
        token_count: how many tokens the handle stands for.
    """

    @property
    def token_count(self) -> int: ...


class GenRequest(Struct, kw_only=True):
    """One generation.

    Attributes:
        id: names the generation in errors and traces.
        prefix: tokens already given to the engine, or None.
        ids: the tokens after `prefix`; the whole prompt where prefix is None.
        script: what a simulated model says; real engines ignore it.
        max_output_tokens: the engine stops with `length` after this many.
        seed: the seed of this generation: all that is random about it comes from here, so that two
            designs which derive it alike get the same steps.
        salt: separates the prefix caches of tenants.
        output_count: output ids that an earlier attempt already produced; they are the tail of
            the prompt and count towards `max_output_tokens`.
    """

    id: str
    prefix: Prefix | None
    ids: TokenIds[int]
    script: Script
    max_output_tokens: int
    seed: int = 0
    salt: str = ""
    output_count: int = 0


class EngineUsage(Struct, gc=False):
    """Counts in tokens, times in seconds on the engine's clock. All times are modelled where the
    engine is simulated."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    discarded_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Finish(Struct, gc=False):
    """The end of a generation: exactly one per submitted request, also after a cancel.

    Attributes:
        reason: `stop` (the model ended its turn), `length`, `cancel` or `error`.
        usage: what it cost.
        prefix: a handle on prompt and output together, for the next turn; None where it was lost,
            or never made because the prefill did not end.
        error: set exactly when reason is `error`.
    """

    reason: str
    usage: EngineUsage
    prefix: Prefix | None = None
    error: EngineFault | None = None


class Sink(Protocol):
    """Where steps go. Called from the event loop's thread; must not block or raise."""

    def on_steps(self, ids: list[int], sizes: bytes) -> None:
        """Batch steps of this request that are due, joined.

        Args:
            ids: the tokens of all these steps.
            sizes: how many of them each step made, 1 to 255.
        """

    def on_finish(self, finish: Finish) -> None:
        """The last call for this request."""


class Generation(Protocol):
    """A running request."""

    def cancel(self) -> None:
        """Stop at the next step boundary; `on_finish` then says `cancel`. Idempotent. From within
        `on_steps`, the boundary is after the steps that it was given."""


class Engine(Protocol):
    """Anything that continues token ids."""

    def submit(self, request: GenRequest, sink: Sink) -> Generation:
        """Start a generation. Never calls the sink before it has returned.

        Raises:
            PrefixLost: `request.prefix` is no longer held.
            EngineFault: the request cannot be taken.
        """

    async def close(self) -> None:
        """Cancel what runs and release what is held."""
