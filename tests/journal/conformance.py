"""What every journal promises, checked on any of them."""

from __future__ import annotations

from collections.abc import Callable

from agentloop.core.records import AnyRecord, KeptAlive, Sampled, TurnEnded
from agentloop.engine.api import TokenIds
from agentloop.journal.api import Journal

Make = Callable[[], Journal]
ONE, TWO = "resp_one", "resp_two"


def records(count: int) -> list[AnyRecord]:
    """Different records, numbered."""
    made: list[AnyRecord] = [
        KeptAlive(kind="kept_alive"),
        TurnEnded(kind="turn_ended", reason="stop", cached_tokens=3),
        Sampled(kind="sampled", ids=TokenIds("I", [1, 200_012]), sizes=b"\x02"),
    ]
    chosen = [made[number % len(made)] for number in range(count)]
    for number, record in enumerate(chosen):
        record.first_seq = number
    return chosen


def check_journal(make: Make) -> None:
    """Every promise; `make` gives a new, empty journal each time."""
    for check in (
        check_order_per_response,
        check_positions,
        check_gate,
        check_listeners_see_what_is_durable,
        check_reader_owns_its_list,
        check_paged_reading,
        check_unknown_id,
        check_forget,
    ):
        check(make())


def check_order_per_response(journal: Journal) -> None:
    kept = records(6)
    journal.append(ONE, kept[:2])
    journal.append(TWO, kept[2:3])
    journal.append(ONE, kept[3:])
    assert journal.read(ONE) == [*kept[:2], *kept[3:]]
    assert journal.read(TWO) == kept[2:3]


def check_positions(journal: Journal) -> None:
    """One line of positions over all Responses; an append tells its last record's."""
    assert journal.append(ONE, records(2)) == 2
    assert journal.append(TWO, records(3)) == 5
    assert journal.append(ONE, records(1)) == 6
    assert journal.append(ONE, []) == 6


def check_gate(journal: Journal) -> None:
    assert journal.gate.durable == 0
    position = journal.append(ONE, records(3))
    assert journal.gate.durable == position, "this journal's writes are durable at once"


def check_listeners_see_what_is_durable(journal: Journal) -> None:
    """Who is woken by the gate can read what it says is safe."""
    seen: list[tuple[int, int]] = []
    stop = journal.gate.subscribe(
        lambda: seen.append((journal.gate.durable, len(journal.read(ONE))))
    )
    journal.append(ONE, records(2))
    journal.append(ONE, records(1))
    stop()
    journal.append(ONE, records(1))
    assert seen == [(2, 2), (3, 3)]


def check_reader_owns_its_list(journal: Journal) -> None:
    given = records(2)
    journal.append(ONE, given)
    given.clear()
    journal.read(ONE).clear()
    assert len(journal.read(ONE)) == 2


def check_paged_reading(journal: Journal) -> None:
    kept = records(5)
    journal.append(ONE, kept)
    assert journal.read(ONE, 3) == kept[3:]
    assert journal.read(ONE, 1, 2) == kept[1:3]
    assert journal.read(ONE, 4, 2) == kept[4:]
    assert journal.read(ONE, 5, 2) == []


def check_unknown_id(journal: Journal) -> None:
    assert journal.read("resp_unknown") == []
    journal.forget("resp_unknown")
    journal.append(ONE, records(1))
    assert journal.read("resp_unknown") == []


def check_forget(journal: Journal) -> None:
    journal.append(ONE, records(2))
    position = journal.append(TWO, records(2))
    journal.forget(ONE)
    assert journal.read(ONE) == []
    assert len(journal.read(TWO)) == 2
    assert journal.append(ONE, records(1)) == position + 1, "positions are never used again"
    assert len(journal.read(ONE)) == 1
