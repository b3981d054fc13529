"""The journal: records in, positions out.

`append` is synchronous. It gives the position of the last record; the gate says when positions
are durable. What a journal refuses (a fence) it refuses whole, before `durable` advances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentloop.core.records import AnyRecord
from agentloop.gate import Gate


class Journal(Protocol):
    """Every Response's records, in order.

    Attributes:
        gate: knows what is durable.
    """

    gate: Gate

    @property
    def position(self) -> int:
        """The position of the last record."""

    def append(self, response_id: str, records: Sequence[AnyRecord]) -> int:
        """Keep these records; returns the position of the last one."""

    def read(self, response_id: str, start: int = 0, count: int | None = None) -> list[AnyRecord]:
        """A Response's records from the `start`th on, oldest first; none for an unknown one.

        Args:
            count: at most this many; None reads all.
        """

    def forget(self, response_id: str) -> None:
        """Drop a Response's records; unknown ids are ignored."""
