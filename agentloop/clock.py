"""Time. Nothing else in agentloop reads a clock.

`WallClock` is real time. `VirtualClock` belongs to a `VirtualLoop`, which jumps to the next timer
when nothing is ready. Both give seconds as floats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """What the rest of agentloop may ask of time."""

    is_virtual: bool

    def now(self) -> float:
        """Monotonic seconds."""

    def timestamp(self) -> float:
        """Seconds since 1970, for what people and the wire read."""

    async def sleep(self, delay_s: float) -> None:
        """Wait; returns at once for a delay of zero or less."""

    def call_at(self, when_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back at `now() == when_s`, or soon where that has passed."""
