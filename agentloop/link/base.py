"""What all links share: the outbox behind the gate, its one writer, and the way to the end.

A link writes at most once per turn of the event loop: `send` only queues and schedules one flush,
and the flush hands all that is due to the transport together, because a write costs the same for
one frame as for fifty. Three things can hold the writer up, and each has its own wake-up: nothing
is queued (`send`), the head is not durable (the gate), the transport is full (`_wait_for_room`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from agentloop.errors import LinkClosed
from agentloop.link.api import (
    CONNECTION_LOST,
    DRAINED_BYTES,
    NORMAL,
    TRY_AGAIN_LATER,
    LinkLimits,
    Tap,
)
from agentloop.link.outbox import Outbox

if TYPE_CHECKING:
    from agentloop.clock import Clock
    from agentloop.gate import Gate


def too_big_reason(limit_bytes: int) -> str:
    """What the sender of a message over the limit is told."""
    return f"message larger than the limit of {limit_bytes} bytes"


class BaseLink(ABC):
    """A link without its transport."""

    def __init__(self, clock: Clock, gate: Gate, limits: LinkLimits) -> None:
        self.tap: Tap | None = None
        self.last_received_s = clock.now()
        self.bytes_in = self.bytes_out = 0
        self.frames_in = self.frames_out = 0
        self._clock = clock
        self._gate = gate
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox(limits.queue_bytes)
        self._wakeup: asyncio.Handle | None = None
        self._unwatch: Callable[[], None] | None = None
        self._progress = asyncio.Event()
        self._ended: tuple[int, str] | None = None
        self._is_closing = False
        self._is_released = False

    # The transport.

    @abstractmethod
    def _room_bytes(self) -> int:
        """How much the transport takes now."""

    @abstractmethod
    def _write(self, frames: list[bytes]) -> None:
        """Hand frames to the transport in one write."""

    @abstractmethod
    def _wait_for_room(self) -> None:
        """Arrange for `_flush` when the transport takes more."""

    @abstractmethod
    def _wake_reader(self) -> None:
        """Let a waiting `recv` see that the link has ended."""

    @abstractmethod
    async def _hang_up(self, code: int, reason: str) -> None:
        """Tell the peer and wait for its answer. Cancelled at the close timeout."""

    @abstractmethod
    async def _release(self) -> None:
        """Give everything back."""

    @abstractmethod
    def _cut(self) -> None:
        """Break the connection."""

    # Sending.

    @property
    def is_closed(self) -> bool:
        return self._ended is not None

    @property
    def queued_bytes(self) -> int:
        return self._outbox.queued_bytes

    def send(self, frames: Sequence[bytes], position: int = 0) -> None:
        if self._ended is not None:
            return
        if not self._outbox.put(frames, position):
            limit = self._limits.queue_bytes
            self._end(TRY_AGAIN_LATER, f"slow consumer: more than {limit} bytes unread")
            self._wake_reader()
        elif self._wakeup is None and self._unwatch is None:
            self._wakeup = self._loop.call_soon(self._flush)

    def drop(self, is_refused: Callable[[int], bool]) -> None:
        self._outbox.drop(is_refused)
        self._wake()  # the head may be gone, and what stood behind it due

    async def wait_drained(self) -> None:
        low_bytes = min(self._limits.queue_bytes // 2, DRAINED_BYTES)
        await self._wait_until(lambda: self._outbox.queued_bytes <= low_bytes)

    async def _wait_until(self, is_met: Callable[[], bool]) -> None:
        while not is_met():
            self._progress.clear()
            await self._progress.wait()

    def _wake(self) -> None:
        if self._wakeup is None:
            self._wakeup = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._wakeup = None
        outbox, durable = self._outbox, self._gate.durable
        while outbox.has_due(durable) and (room_bytes := self._room_bytes()) > 0:
            frames = outbox.take(durable, room_bytes)
            self.frames_out += len(frames)
            self.bytes_out += sum(map(len, frames))
            if self.tap is not None:
                for frame in frames:
                    self.tap("out", frame)
            self._write(frames)
        if outbox.has_due(durable):
            self._wait_for_room()
        elif outbox and self._unwatch is None:
            self._unwatch = self._gate.subscribe(self._on_durable)
        self._progress.set()

    def _on_durable(self) -> None:
        if self._outbox.has_due(self._gate.durable):
            self._stop_watching()
            self._wake()

    def _stop_watching(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _discard(self) -> None:
        """Forget all that was to be written, and every wake-up."""
        self._outbox.clear()
        self._stop_watching()
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        self._progress.set()

    # Receiving.

    def _count_in(self, frame: bytes, received_s: float) -> bytes:
        self.last_received_s = received_s
        self.frames_in += 1
        self.bytes_in += len(frame)
        if self.tap is not None:
            self.tap("in", frame)
        return frame

    # The end.

    def _end(self, code: int, reason: str) -> None:
        """Nothing more is sent. How the link ended first is what everybody is told."""
        if self._ended is None:
            self._ended = code, reason
        self._discard()

    def _closed_error(self) -> LinkClosed:
        assert self._ended is not None
        code, reason = self._ended
        return LinkClosed(reason or f"the link closed with code {code}", close_code=code)

    def abort(self) -> None:
        self._end(CONNECTION_LOST, "the link was cut")
        self._cut()

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        if self._is_closing:
            await self._wait_until(lambda: self._is_released)
            return
        self._is_closing = True
        code, reason = self._ended = self._ended or (code, reason)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.close_timeout_s):
                    await self._wait_until(lambda: not self._outbox.has_due(self._gate.durable))
                    self._discard()
                    await self._hang_up(code, reason)
        finally:
            try:
                await self._release()
            finally:
                self._is_released = True
                self._discard()
