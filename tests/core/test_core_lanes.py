"""The append protocol's rules for lanes and for the keys of creates (sections 3.5, 4.1, 5.3)."""

from __future__ import annotations

import pytest

from agentloop.core.keys import Keys
from agentloop.core.lanes import LANES_MAX, WAITING_MAX, LaneState, check_lane_name
from agentloop.errors import (
    KeyConflict,
    LimitExceeded,
    ProtocolError,
    StateConflict,
    UnknownResponse,
)
from tests.core.core_kit import in_state


@pytest.mark.parametrize("state", ["created", "sampling"])
def test_4_1_creates_wait_for_the_turns_end_first_in_first_out(state: str) -> None:
    queue: LaneState[int] = LaneState()
    queue.carry(in_state(state).response)
    assert queue.is_at_work
    for number in range(WAITING_MAX):
        queue.hold(number)
    with pytest.raises(LimitExceeded) as caught:
        queue.hold(16)
    assert (caught.value.code, caught.value.status) == ("too_many_queued", 429)
    assert queue.last == 15
    assert queue.current is not None
    assert queue.current.must_yield
    assert [queue.next() for _ in range(17)] == [*range(16), None]


@pytest.mark.parametrize("state", [None, "suspended", "idle", "completed"])
def test_4_1_a_create_starts_where_no_turn_runs(state: str | None) -> None:
    queue: LaneState[str] = LaneState()
    if state is not None:
        queue.carry(in_state(state).response)
    assert not queue.is_at_work
    assert queue.next() is None


def test_4_1_a_response_yields_while_more_creates_wait() -> None:
    queue: LaneState[int] = LaneState()
    first, second, third = (in_state("sampling").response for _ in range(3))
    queue.carry(first)
    queue.hold(1)
    queue.hold(2)
    queue.next()
    queue.carry(second)
    assert second.must_yield
    queue.next()
    queue.carry(third)
    assert not third.must_yield


def test_4_1_nothing_waits_once_the_link_is_gone() -> None:
    queue: LaneState[int] = LaneState()
    queue.carry(in_state("sampling").response)
    queue.hold(1)
    queue.clear()
    assert queue.next() is None
    assert queue.last is None


def test_5_3_a_lane_carries_one_response() -> None:
    queue: LaneState[int] = LaneState()
    mine, other = in_state("idle").response, in_state("idle").response
    queue.check_free_for(mine)
    queue.carry(mine)
    queue.check_free_for(mine)
    with pytest.raises(StateConflict) as caught:
        queue.check_free_for(other)
    assert (caught.value.code, caught.value.status) == ("lane_busy", 409)
    mine.cancel()
    queue.check_free_for(other)


def test_5_3_a_frame_without_an_id_needs_a_response_on_its_lane() -> None:
    queue: LaneState[int] = LaneState()
    with pytest.raises(UnknownResponse) as caught:
        queue.target()
    assert (caught.value.code, caught.value.status) == ("response_not_found", 400)
    mine = in_state("completed").response
    queue.carry(mine)
    assert queue.target() is mine


@pytest.mark.parametrize("name", [None, "a", "A-Z_0.9", "x" * 256])
def test_lane_names_that_are_taken(name: str | None) -> None:
    check_lane_name(name, LANES_MAX if name is None else LANES_MAX - 1)


@pytest.mark.parametrize(
    ("name", "known", "code"),
    [
        ("", 0, "invalid_stream_id"),
        ("x" * 257, 0, "invalid_stream_id"),
        ("a b", 0, "invalid_stream_id"),
        ("a\n", 0, "invalid_stream_id"),
        ("ä", 0, "invalid_stream_id"),
        ("a", 32, "websocket_stream_limit_reached"),
    ],
)
def test_lane_names_that_are_refused(name: str, known: int, code: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_lane_name(name, known)
    assert (caught.value.code, caught.value.status) == (code, 400)
    assert caught.value.param == "stream_id"


def test_3_5_a_create_with_a_known_key_is_the_response_it_made() -> None:
    keys: Keys[str] = Keys()
    assert keys.find("k", b"one") is None
    keys.keep("k", b"one", "resp_a")
    assert keys.find("k", b"one") == "resp_a"
    with pytest.raises(KeyConflict):
        keys.find("k", b"two")
    keys.release("k", "resp_a")
    assert keys.find("k", b"two") is None


def test_3_5_creates_without_a_key_are_all_new() -> None:
    keys: Keys[str] = Keys()
    keys.keep(None, b"", "resp_a")
    assert keys.find(None, b"") is None
    keys.release(None, "resp_a")


def test_3_5_the_oldest_keys_are_forgotten() -> None:
    keys: Keys[str] = Keys(keys_max=2)
    for key in "abc":
        keys.keep(key, b"", f"resp_{key}")
    assert [keys.find(key, b"") for key in "abc"] == [None, "resp_b", "resp_c"]
