"""What must hold in every session, whatever it is about."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from agentloop.core.fold import replay
from agentloop.errors import UnknownResponse
from agentloop.loop.live import Live

Event = dict[str, Any]

UNNUMBERED = {"error", "response.attached", "response.replay.done", "response.detached"}
ACCEPTED = {"response.append.accepted", "response.inject.created"}
TERMINALS = {"response.completed", "response.incomplete", "response.failed"}
NO_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


class Heard:
    """Every event that came over a client's links, by the Response that it tells of."""

    def __init__(self) -> None:
        self._carried: dict[tuple[str, str | None], str] = {}  # lane of a link → Response
        self._next_seq: dict[tuple[str, str | None], int] = {}
        self._events: dict[str, list[Event]] = {}

    def forget(self, link: str) -> None:
        """A new link bears this name now."""
        for lane in [lane for lane in self._carried if lane[0] == link]:
            del self._carried[lane]

    def note(self, link: str, event: Event) -> None:
        """Check that the numbers on a lane leave nothing out, and keep the event."""
        lane = (link, event.get("stream_id"))
        if event["type"] in ("response.created", "response.attached"):
            shown = event.get("response", {"id": event.get("response_id")})
            self._carried[lane] = shown["id"]
            self._next_seq.pop(lane, None)
        if event["type"] in UNNUMBERED:
            assert "sequence_number" not in event, f"{event['type']} bears a number"
            return
        if event["type"] == "response.inject.failed":
            assert event["sequence_number"] < self._next_seq.get(lane, 1)
            return
        number = event["sequence_number"]
        response_id = event.get("response_id", self._carried.get(lane))
        assert response_id, f"nobody can tell which Response {event} is about"
        is_elsewhere = response_id != self._carried.get(lane)
        expected = self._next_seq.setdefault(lane, number)
        is_repeat = event["type"] in ACCEPTED and number < expected
        if not is_elsewhere and not is_repeat:
            assert number == expected, f"number {expected} is left out before {event}"
            self._next_seq[lane] = number + 1
        stored = {key: value for key, value in event.items() if key != "stream_id"}
        self._events.setdefault(response_id, []).append(stored)

    def check(self, live: Live) -> None:
        """A replay says again what was heard, and each Response was a sound one."""
        for response_id, heard in self._events.items():
            if is_forgotten(live, heard):
                continue
            frames = said_again(live, response_id)
            said: list[Event] = [msgspec.json.decode(frame) for frame in frames]
            for event in heard:
                assert event == said[event["sequence_number"]], "a replay says something else"
            check_response(said)


def is_forgotten(live: Live, heard: list[Event]) -> bool:
    """Whether the Response was not to be stored, and is indeed gone."""
    try:
        live.get(heard[0]["response"]["id"])
    except UnknownResponse:
        assert not heard[0]["response"]["store"]
        return True
    return False


def said_again(live: Live, response_id: str) -> list[bytes]:
    """All events of a Response, made again from its records."""
    response = live.get(response_id).response
    return replay(response.config, live.shared.journal.read(response_id), response.parent)


def check_response(said: list[Event]) -> None:
    """All events of one Response, from its first on: numbers, ends, items and sums are right."""
    assert [event["sequence_number"] for event in said] == list(range(len(said)))
    terminals = [event for event in said if event["type"] in TERMINALS]
    assert len(terminals) <= 1, "two terminals"
    assert not terminals or said[-1] is terminals[0], "something is said after the terminal"
    _check_items(said, has_ended=bool(terminals))
    _check_usage(said)


def _check_items(said: list[Event], has_ended: bool) -> None:
    """Items are opened in index order, one at a time, and closed; reported once, in order."""
    indices, opened = count(), None
    reported: list[Event] = []
    done: list[Event] = []
    for event in said:
        if event["type"] == "response.output_item.added":
            assert opened is None, "an item is opened within another one"
            opened = event["output_index"]
            assert opened == next(indices)
        elif event["type"] == "response.output_item.done":
            assert event["output_index"] == opened
            done.append(event["item"])
            opened = None
        elif "output_index" in event:
            assert event["output_index"] == opened, f"{event} belongs to no open item"
        elif "output" in event.get("response", {}) and event["type"] != "response.created":
            reported += event["response"]["output"]
    if has_ended and opened is not None:  # a call that was cut
        assert reported[-1]["status"] == "incomplete"
        assert reported[-1]["type"].endswith("_call")
        reported.pop()
    assert reported == done[: len(reported)]
    assert not has_ended or reported == done


def _check_usage(said: list[Event]) -> None:
    total = NO_USAGE
    for event in said:
        shown = event.get("response", {})
        usage = shown.get("usage")
        if usage is not None:
            assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
            assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
            total = _sum(total, usage)
            assert shown["usage_total"] == total


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {key: _sum(one[key], other[key]) for key in one}
    return one + other
