"""One restartable timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentloop.clock import Clock


class Timer:
    """Calls back once after a delay, unless it was stopped or started again."""

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None

    def start(self, delay_s: float) -> None:
        """Call back in `delay_s` seconds; an earlier start is forgotten."""
        self.stop()
        self._handle = self._clock.call_at(self._clock.now() + delay_s, self._fire)

    def stop(self) -> None:
        """Do not call back."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback()
