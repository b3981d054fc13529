"""What the scheduler knows about one generation."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from msgspec import Struct

from agentloop.engine.api import EngineUsage, Part
from agentloop.engine.sim.prefix_cache import Block, SimPrefix
from agentloop.engine.sim.timing import Pace
from agentloop.errors import EngineFault


class Phase(Enum):
    """Where a generation is."""

    QUEUED = auto()
    PREFILLING = auto()
    DECODING = auto()
    STALLED = auto()
    ENDING = auto()
    DONE = auto()


class Job(Struct, eq=False, kw_only=True):
    """One generation inside the scheduler; callers read `phase` and leave the rest alone.

    Attributes:
        prompt: the handle on the whole prompt.
        keys: the prompt's blocks after the leased one.
        block: the leased block of the prefix cache; None where the replica has died.
        samples, parts: what the model says: all samples, and the parts that are to come.
        sample, begin, offset: the current sample, its next planned id and its next unplanned one.
        sizes, gaps_ns, index: of the planned steps: their ids, the time before each; the next one.
        due_ns, order: when the next thing happens, and the heap entry that says so.
    """

    id: str
    prompt: SimPrefix
    keys: list[bytes]
    block: Block | None
    samples: list[tuple[int, ...]]
    parts: Iterator[Part]
    output_tokens_max: int
    pace: Pace
    usage: EngineUsage
    submitted_ns: int
    admitted_ns: int | None = None
    prefilled_ns: int | None = None
    phase: Phase = Phase.QUEUED
    due_ns: int = 0
    order: int = 0
    sample: list[int] = []
    is_easy: bool = False
    offset: int = 0
    begin: int = 0
    sizes: list[int] = []
    gaps_ns: list[int] = []
    index: int = 0
    reason: str = ""
    error: EngineFault | None = None
