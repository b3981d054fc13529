"""Lanes: what waits for a Response's turn to end, in the order of receipt."""

from __future__ import annotations

import re
from collections import deque
from typing import Generic, TypeVar

from agentloop.errors import LimitExceeded, ProtocolError

WAITING_MAX = 16
LANES_MAX = 32
_LANE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")

T = TypeVar("T")


class Waiting(Generic[T]):
    """The creates that wait on one lane: first in, first out, at most 16."""

    def __init__(self) -> None:
        self._creates: deque[T] = deque()

    def __bool__(self) -> bool:
        return bool(self._creates)

    def put(self, create: T) -> None:
        """Wait behind the others.

        Raises:
            LimitExceeded: `too_many_queued`.
        """
        if len(self._creates) >= WAITING_MAX:
            raise LimitExceeded(
                f"{WAITING_MAX} creates wait on this lane; wait for a terminal before the next",
                code="too_many_queued",
            )
        self._creates.append(create)

    def next(self) -> T:
        """Take the one that waits longest."""
        return self._creates.popleft()

    @property
    def last(self) -> T:
        """The one received last; a frame without an id belongs to it."""
        return self._creates[-1]


def check_lane_name(stream_id: str | None, known: int) -> None:
    """A lane's name is 1 to 256 of `A-Z a-z 0-9 _ . -`; None is the default lane.

    Args:
        known: how many named lanes the link has already.

    Raises:
        ProtocolError: `invalid_stream_id`.
        LimitExceeded: `websocket_stream_limit_reached`, the 33rd named lane.
    """
    if stream_id is None:
        return
    if not _LANE_NAME.fullmatch(stream_id):
        raise ProtocolError(
            "stream_id takes 1 to 256 letters, digits, '_', '-' or '.'",
            code="invalid_stream_id",
            param="stream_id",
        )
    if known >= LANES_MAX:
        error = LimitExceeded(
            f"a link carries at most {LANES_MAX} named lanes; use another link",
            code="websocket_stream_limit_reached",
            param="stream_id",
        )
        error.status = 400  # the code's documented status
        raise error
