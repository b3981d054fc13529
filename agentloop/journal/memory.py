"""The journal in memory: durable the moment it is written, gone with the process."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.core.records import AnyRecord
from agentloop.gate import Gate


class MemoryJournal:
    """For benches, tests and `--memory`. A Response's records stay until it is forgotten."""

    def __init__(self) -> None:
        self.gate = Gate()
        self._records: dict[str, list[AnyRecord]] = {}
        self.position = 0

    def append(self, response_id: str, records: Sequence[AnyRecord]) -> int:
        self._records.setdefault(response_id, []).extend(records)
        self.position += len(records)
        self.gate.advance(self.position)
        return self.position

    def read(self, response_id: str, start: int = 0, count: int | None = None) -> list[AnyRecord]:
        stop = None if count is None else start + count
        return self._records.get(response_id, [])[start:stop]

    def forget(self, response_id: str) -> None:
        self._records.pop(response_id, None)
