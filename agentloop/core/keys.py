"""Keys: the same `event_id` with the same payload is the same request, answered the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from agentloop.errors import KeyConflict

T = TypeVar("T")


class Keys(Generic[T]):
    """What each key was answered with, and for which payload.

    Args:
        keys_max: keys kept longest ago are forgotten first beyond this many; None keeps all.
    """

    def __init__(self, keys_max: int | None = None) -> None:
        self._answers: OrderedDict[str, tuple[bytes, T]] = OrderedDict()
        self._keys_max = keys_max

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def find(self, event_id: str | None, fingerprint: bytes) -> T | None:
        """The answer that this key got before; None for a new key, and without one.

        Raises:
            KeyConflict: the key came with another payload.
        """
        if event_id is None or event_id not in self._answers:
            return None
        known, answer = self._answers[event_id]
        if known != fingerprint:
            raise KeyConflict(
                f"event_id {event_id!r} was used for another payload; use a new one",
                param="event_id",
            )
        return answer

    def keep(self, event_id: str | None, fingerprint: bytes, answer: T) -> None:
        """This key was answered."""
        if event_id is None:
            return
        self._answers[event_id] = fingerprint, answer
        if self._keys_max is not None and len(self._answers) > self._keys_max:
            self._answers.popitem(last=False)

    def release(self, event_id: str | None, answer: T) -> None:
        """The key is free again, if this is what it was answered with last."""
        if event_id is not None and self._answers.get(event_id, (b"", None))[1] == answer:
            del self._answers[event_id]
