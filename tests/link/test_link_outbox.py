"""The outbox: order, the gate's hold, the bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentloop.link.outbox import OVERHEAD_BYTES, Outbox

FOREVER = 1 << 40


def test_takes_what_is_due_in_order():
    outbox = Outbox(1000)
    outbox.put([b"a", b"b"], 0)
    outbox.put([b"c"], 2)
    outbox.put([b"d"], 1)
    assert outbox.take(0, FOREVER) == [b"a", b"b"]
    assert outbox.take(1, FOREVER) == []
    assert not outbox.has_due(1)
    assert outbox.has_due(2)
    assert outbox.take(2, FOREVER) == [b"c", b"d"]
    assert (len(outbox), outbox.queued_bytes) == (0, 0)


def test_room_bounds_what_is_taken_but_an_entry_is_never_cut():
    outbox = Outbox(10_000)
    for letter in (b"a", b"b", b"c"):
        outbox.put([letter * 500, letter * 500], 0)
    assert outbox.take(0, 1) == [b"a" * 500, b"a" * 500]
    assert outbox.take(0, FOREVER) == [b"b" * 500] * 2 + [b"c" * 500] * 2


def test_refuses_what_would_exceed_the_limit():
    outbox = Outbox(100 + 2 * OVERHEAD_BYTES)
    assert outbox.put([b"x" * 100], 0)
    assert not outbox.put([b""], 0)
    assert outbox.take(0, FOREVER) == [b"x" * 100]
    assert not outbox.put([b"x" * 101], 0)
    assert outbox.put([b"x"], 0)


def test_tiny_frames_are_bounded_by_the_memory_they_hold():
    outbox = Outbox(1_000_000)
    assert sum(outbox.put([b"x"], 0) for _ in range(20_000)) < 10_000
    assert not Outbox(1_000_000).put([b""] * 20_000, 0)


def test_refused_positions_are_dropped_and_others_stay():
    outbox = Outbox(10_000)
    for position in (0, 3, 4, 3, 5):
        outbox.put([b"%d" % position], position)
    held_bytes = outbox.queued_bytes
    outbox.drop(lambda position: position == 3)
    assert outbox.queued_bytes < held_bytes
    assert outbox.take(5, FOREVER) == [b"0", b"4", b"5"]
    assert outbox.queued_bytes == 0


@given(
    st.lists(st.tuples(st.lists(st.binary(max_size=9), max_size=4), st.integers(0, 20))),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400))),
)
def test_whatever_the_steps_the_frames_come_out_once_in_order(entries, steps):
    outbox = Outbox(FOREVER)
    for frames, position in entries:
        assert outbox.put(frames, position)
    taken: list[bytes] = []
    durable = 0
    for advance, room_bytes in steps:
        durable += advance
        taken += outbox.take(durable, room_bytes)
    assert len(outbox) == 0 or outbox.queued_bytes > 0
    taken += outbox.take(FOREVER, FOREVER)
    assert taken == [frame for frames, _ in entries for frame in frames]
    assert outbox.queued_bytes == 0
