"""SIGINT and SIGTERM: they ask a command to end, and never end it by force, because the temporary
folder has to go and the exit code has to tell."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Signals:
    """Both signals, from now until `restore`. One that our parent ignores stays ignored."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._cancel: Callable[[], object] | None = None
        self._before = {
            number: signal.signal(number, self._take)
            for number in _SAID
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def _take(self, number: int, _: FrameType | None) -> None:
        self._received = self._received or signal.Signals(number)
        if self._cancel is not None:
            self._cancel()

    async def cancelling(self, command: Awaitable[int]) -> int:
        """The command's exit code. A signal cancels it, and each further one hastens its end."""
        task = asyncio.current_task()
        assert task is not None
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        if self._received is not None:  # before there was anything to cancel
            self._cancel()
        try:
            return await command
        finally:
            self._cancel = None

    def ending(self) -> tuple[str, int]:
        """What a cancelled command says, and its exit code."""
        assert self._received is not None
        return _SAID[self._received], 128 + self._received

    def restore(self) -> None:
        """Give the signals back; once one has come, more can't spoil the little that is left."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._received else handler)
