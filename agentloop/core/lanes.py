"""Lanes: a lane carries one Response; creates that come while it works wait for its turn's end.

Pure decisions: a lane says what to start and when, its owner starts it.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Generic, TypeVar

from agentloop.core.response import Response
from agentloop.core.states import State
from agentloop.errors import LimitExceeded, ProtocolError, StateConflict, UnknownResponse

WAITING_MAX = 16
LANES_MAX = 32
_LANE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")

T = TypeVar("T")


class LaneState(Generic[T]):
    """One lane's Response and the creates that wait for it, first in, first out.

    Attributes:
        current: the Response that the lane carries, ended or not.
        is_observing: the lane only reads along.
    """

    def __init__(self) -> None:
        self.current: Response | None = None
        self.is_observing = False
        self._creates: deque[T] = deque()

    def receive(self, create: T) -> T | None:
        """A create came: returned if it starts now, kept if it waits for the turn's end.

        Raises:
            LimitExceeded: `too_many_queued`.
        """
        current = None if self.is_observing else self.current
        if current is None or current.state not in (State.CREATED, State.SAMPLING):
            return create
        if len(self._creates) >= WAITING_MAX:
            raise LimitExceeded(
                f"{WAITING_MAX} creates wait on this lane; wait for a terminal before the next",
                code="too_many_queued",
            )
        self._creates.append(create)
        current.must_yield = True
        return None

    def next(self) -> T | None:
        """The Response has come to rest or left: the create that takes over, if one waits."""
        return self._creates.popleft() if self._creates else None

    def carry(self, response: Response | None, *, is_observing: bool = False) -> None:
        """The lane's Response from now on; its own yields where more creates wait."""
        self.current = response
        self.is_observing = is_observing
        if response is not None and not is_observing:
            response.must_yield = bool(self._creates)

    @property
    def last(self) -> T | None:
        """The waiting create received last: a frame without an id belongs to it."""
        return self._creates[-1] if self._creates else None

    def clear(self) -> list[T]:
        """The link is gone: nothing waits any more. Returns what waited."""
        dropped = list(self._creates)
        self._creates.clear()
        if self.current is not None and not self.is_observing:
            self.current.must_yield = False
        return dropped

    def target(self) -> Response:
        """The Response that a frame without an id means.

        Raises:
            UnknownResponse: the lane carries none of its own.
        """
        if self.current is None or self.is_observing:
            raise UnknownResponse("this lane carries no Response; create one first")
        return self.current

    def check_free_for(self, response: Response) -> None:
        """A lane carries one Response, since events name none.

        Raises:
            StateConflict: `lane_busy`.
        """
        if self.current is not None and self.current is not response and self.current.is_open:
            raise StateConflict(
                "this lane carries another Response; attach on another stream_id",
                code="lane_busy",
                param="stream_id",
            )


def check_lane_name(stream_id: str | None, known: int) -> None:
    """A lane's name is 1 to 256 of `A-Z a-z 0-9 _ . -`; None is the default lane.

    Args:
        known: how many named lanes the link has already.

    Raises:
        ProtocolError: `invalid_stream_id`, or `websocket_stream_limit_reached` for the 33rd.
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
        raise ProtocolError(
            f"a link carries at most {LANES_MAX} named lanes; use another link",
            code="websocket_stream_limit_reached",
            param="stream_id",
        )
