"""Each journal keeps every promise of the interface."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop.journal.memory import MemoryJournal
from tests.journal.conformance import check_journal, records


def test_memory_journal_conforms() -> None:
    check_journal(MemoryJournal)


class Forgetful(MemoryJournal):
    """Loses an append's first record."""

    def append(self, response_id: str, records: Any) -> int:
        return super().append(response_id, records[1:])


class Shared(MemoryJournal):
    """Gives its own list away."""

    def read(self, response_id: str, start: int = 0, count: int | None = None) -> Any:
        return self._records.get(response_id, [])


class Unpaged(MemoryJournal):
    """Reads all, whatever is asked for."""

    def read(self, response_id: str, start: int = 0, count: int | None = None) -> Any:
        return super().read(response_id)


@pytest.mark.parametrize("wrong", [Forgetful, Shared, Unpaged])
def test_a_wrong_journal_is_found_out(wrong: type[MemoryJournal]) -> None:
    with pytest.raises(AssertionError):
        check_journal(wrong)


def test_records_for_the_checks_differ() -> None:
    assert len({type(record) for record in records(3)}) == 3
