"""One restartable timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from agentloop.clock import Clock


class Timer:
    """Calls back once after a delay, unless it was stopped or started again.

    It knows its callback only while it runs: an owner that has stopped its timers is in no cycle,
    and is freed without the collector.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """Whether it is going to call back."""
        return self._handle is not None

    def start(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back in `delay_s` seconds; an earlier start is forgotten."""
        self.stop()
        self._handle = self._clock.call_at(
            self._clock.now() + delay_s, partial(self._fire, callback)
        )

    def stop(self) -> None:
        """Do not call back."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self, callback: Callable[[], None]) -> None:
        self._handle = None
        callback()
