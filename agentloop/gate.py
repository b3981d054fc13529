"""The gate: nothing is said before it is durable.

A journal gives each record a position, and one number per process, `durable`, says up to where
positions are safe. Link writers hold an entry back until its position is durable; entries that
reveal no record carry position 0.
"""

from __future__ import annotations

from collections.abc import Callable


class Gate:
    """The durable number and its wake-up. Only the journal advances it."""

    def __init__(self) -> None:
        self.durable = 0
        self._listeners: dict[int, Callable[[], None]] = {}
        self._next_key = 0

    def advance(self, position: int) -> None:
        """Everything up to `position` is durable now; listeners are called in order."""
        assert position >= self.durable, "a position cannot become less durable"
        self.durable = position
        for listener in tuple(self._listeners.values()):
            listener()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever `durable` has advanced. Returns the way to stop that."""
        key = self._next_key
        self._next_key += 1
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe
