"""Two links joined in memory, with the semantics of a WebSocket and none of its cost.

Frames arrive one turn of the event loop after they were written, so nothing depends on who runs
first, and a reader that stops reading fills its sender's outbox as a full socket would.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from agentloop.gate import Gate
from agentloop.link.api import CONNECTION_LOST, DEFAULT_LIMITS, TOO_BIG, LinkLimits
from agentloop.link.base import BaseLink, too_big_reason
from agentloop.link.outbox import OVERHEAD_BYTES

if TYPE_CHECKING:
    import asyncio

    from agentloop.clock import Clock

_WINDOW_BYTES = 256 * 1024  # written and not yet received: what a socket's buffers would hold


def memory_pair(
    clock: Clock,
    gate_a: Gate | None = None,
    gate_b: Gate | None = None,
    limits: LinkLimits = DEFAULT_LIMITS,
) -> tuple[MemoryLink, MemoryLink]:
    """Two links, each the other's peer. What one sends waits for its own gate; without a gate only
    position 0 ever leaves."""
    a = MemoryLink(clock, gate_a or Gate(), limits)
    b = MemoryLink(clock, gate_b or Gate(), limits)
    a.peer, b.peer = b, a
    return a, b


class MemoryLink(BaseLink):
    """One end of a `memory_pair`."""

    peer: MemoryLink

    def __init__(self, clock: Clock, gate: Gate, limits: LinkLimits) -> None:
        super().__init__(clock, gate, limits)
        self._inbox: deque[tuple[bytes, float]] = deque()
        self._unread_bytes = 0
        self._reader: asyncio.Future[None] | None = None

    async def recv(self) -> bytes:
        while not self._inbox and self._ended is None:
            self._reader = self._loop.create_future()
            await self._reader
        if not self._inbox:  # what the peer said before its goodbye is still read
            raise self._closed_error()
        frame, received_s = self._inbox.popleft()
        self._unread_bytes -= len(frame) + OVERHEAD_BYTES
        self.peer._on_room()
        if len(frame) > self._limits.message_bytes:
            self._end(TOO_BIG, too_big_reason(self._limits.message_bytes))
            raise self._closed_error()
        return self._count_in(frame, received_s)

    def _deliver(self, frames: list[bytes]) -> None:
        if self._ended is not None:
            return
        received_s = self._clock.now()
        self._inbox.extend((frame, received_s) for frame in frames)
        self._wake_reader()

    def _on_goodbye(self, code: int, reason: str) -> None:
        self._end(code, reason)
        self._wake_reader()

    def _on_room(self) -> None:
        if self._outbox.has_due(self._gate.durable):
            self._wake()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _room_bytes(self) -> int:
        return _WINDOW_BYTES - self.peer._unread_bytes

    def _write(self, frames: list[bytes]) -> None:
        self.peer._unread_bytes += sum(map(len, frames)) + OVERHEAD_BYTES * len(frames)
        self._loop.call_soon(self.peer._deliver, frames)

    def _wait_for_room(self) -> None:
        """The peer's `recv` makes room and then calls `_on_room`."""

    async def _hang_up(self, code: int, reason: str) -> None:
        self._loop.call_soon(self.peer._on_goodbye, code, reason)

    async def _release(self) -> None:
        self._cut()

    def _cut(self) -> None:
        self._inbox.clear()
        self._wake_reader()
        # Where a goodbye was said, it is already on its way and this comes too late.
        self._loop.call_soon(self.peer._on_goodbye, CONNECTION_LOST, "the connection was lost")
