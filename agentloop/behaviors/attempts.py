"""How often each turn was planned: a fault fires on its first `times` attempts only.

Counted by the server per (script, seed, turn), so that a client's own retries count too.
"""

from __future__ import annotations

from collections import OrderedDict


class Attempts:
    """A bounded counter; the turns planned longest ago are forgotten first."""

    def __init__(self, turns_max: int = 10_000) -> None:
        self._counts: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self._turns_max = turns_max

    def count(self, key: str, seed: int, turn: int) -> int:
        """How often this turn was planned before; counts this time."""
        before = self._counts.pop((key, seed, turn), 0)
        self._counts[key, seed, turn] = before + 1
        if len(self._counts) > self._turns_max:
            self._counts.popitem(last=False)
        return before
