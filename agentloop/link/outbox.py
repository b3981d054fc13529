"""The outbox: what a link has yet to write, in order, each entry held until it is durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

# What Python keeps beside the text of a frame, and beside the frames of an entry. Without it a
# flood of tiny frames would hold fifty times the memory that the limit allows.
OVERHEAD_BYTES = 64


class Outbox:
    """A bounded queue of `(position, frames)`.

    Attributes:
        queued_bytes: the memory that the entries hold.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.queued_bytes = 0
        self._limit_bytes = limit_bytes
        self._entries: deque[tuple[int, Sequence[bytes], int]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, frames: Sequence[bytes], position: int) -> bool:
        """Queue frames. False, and nothing queued, where that would exceed the limit."""
        size = sum(map(len, frames)) + OVERHEAD_BYTES * (len(frames) + 1)
        if self.queued_bytes + size > self._limit_bytes:
            return False
        self.queued_bytes += size
        self._entries.append((position, frames, size))
        return True

    def has_due(self, durable: int) -> bool:
        """Whether `take` would give anything. An entry not yet durable holds back those behind."""
        return bool(self._entries) and self._entries[0][0] <= durable

    def take(self, durable: int, room_bytes: int) -> list[bytes]:
        """Remove and return what is due, in order: whole entries until `room_bytes` are used up,
        at least one."""
        frames: list[bytes] = []
        entries = self._entries
        taken_bytes = 0
        while entries and entries[0][0] <= durable:
            _, entry_frames, size = entries.popleft()
            frames += entry_frames
            taken_bytes += size
            if taken_bytes >= room_bytes:
                break
        self.queued_bytes -= taken_bytes
        return frames

    def drop(self, is_refused: Callable[[int], bool]) -> None:
        """Forget the entries whose position is refused."""
        self._entries = deque(entry for entry in self._entries if not is_refused(entry[0]))
        self.queued_bytes = sum(size for _, _, size in self._entries)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.queued_bytes = 0
