"""Lanes: a lane carries one Response; creates that come while it works wait for its turn's end.

Pure decisions: a lane says what to start and when, its owner starts it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
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

    @property
    def is_at_work(self) -> bool:
        """Whether the lane's own Response samples."""
        return self.own is not None and self.own.state in (State.CREATED, State.SAMPLING)

    @property
    def own(self) -> Response | None:
        """The Response that it carries and does not only observe."""
        return None if self.is_observing else self.current

    def hold(self, create: T) -> None:
        """A create came that can't start yet.

        Raises:
            LimitExceeded: `too_many_queued`.
        """
        if len(self._creates) >= WAITING_MAX:
            raise LimitExceeded(
                f"{WAITING_MAX} creates wait on this lane; wait for a terminal before the next",
                code="too_many_queued",
            )
        self._creates.append(create)
        self._mark()

    def next(self) -> T | None:
        """The Response has come to rest or left: the create that takes over, if one waits."""
        create = self._creates.popleft() if self._creates else None
        self._mark()
        return create

    def _mark(self) -> None:
        """The lane's own Response stops at its turn's end where creates wait."""
        if self.own is not None:
            self.own.must_yield = bool(self._creates)

    def carry(self, response: Response | None, *, is_observing: bool = False) -> None:
        """The lane's Response from now on; its own yields where more creates wait."""
        if self.own is not None:
            self.own.must_yield = False
        self.current = response
        self.is_observing = is_observing
        self._mark()

    @property
    def waiting(self) -> Sequence[T]:
        """The creates that wait, in order of receipt."""
        return self._creates

    @property
    def last(self) -> T | None:
        """The waiting create received last: a frame without an id belongs to it."""
        return self._creates[-1] if self._creates else None

    def clear(self) -> list[T]:
        """The link is gone: nothing waits any more. Returns what waited."""
        dropped = list(self._creates)
        self._creates.clear()
        self._mark()
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
