"""The lanes of one link, and what they share: how many of them sample, and how much may wait."""

from __future__ import annotations

import asyncio
from collections import deque

from agentloop.core.lanes import check_lane_name
from agentloop.errors import LimitExceeded
from agentloop.link.api import Link
from agentloop.loop.live import Live
from agentloop.serve.lane import Lane, Refuse

SAMPLING_MAX = 16
WAITING_BYTES_MAX = 64 * 2**20


class Lanes:
    """The lanes by name. It is the `Traffic` that each of them asks.

    At most `SAMPLING_MAX` sample at a time; creates beyond that wait, and lanes get their turn in
    the order in which they were ready. A Response that resumes is never held back.

    Args:
        group: owns what lanes do in the background.
    """

    def __init__(self, link: Link, live: Live, group: asyncio.TaskGroup, refuse: Refuse) -> None:
        self._link = link
        self._live = live
        self._group = group
        self._refuse = refuse
        self._lanes: dict[str | None, Lane] = {}
        self._ready: deque[Lane] = deque()

    def get(self, name: str | None) -> Lane:
        """The lane of this name. A new one becomes known once it is given something to carry.

        Raises:
            ProtocolError: `invalid_stream_id`, `websocket_stream_limit_reached`.
        """
        known = self._lanes.get(name)
        if known is not None:
            return known
        check_lane_name(name, sum(name is not None for name in self._lanes))
        return Lane(name, self._link, self._live, self, self._group, self._refuse)

    def keep(self, lane: Lane) -> None:
        """Know this lane from now on, if there is anything on it."""
        if lane.state.current is not None or lane.state.waiting:
            self._lanes[lane.name] = lane

    def end(self) -> None:
        """The link is gone."""
        for lane in self._lanes.values():
            lane.end()

    # -- what lanes ask ------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        at_work = sum(lane.state.is_at_work for lane in self._lanes.values())
        return at_work >= SAMPLING_MAX

    def on_rest(self, lane: Lane) -> None:
        if lane.state.waiting:
            self._ready.append(lane)
        while self._ready and not self.is_full:
            self._ready.popleft().start_next()

    def check_room(self, byte_count: int) -> None:
        waiting = (create for lane in self._lanes.values() for create in lane.state.waiting)
        if sum(create.byte_count for create in waiting) + byte_count > WAITING_BYTES_MAX:
            raise LimitExceeded(
                f"what waits on one link may hold {WAITING_BYTES_MAX} bytes; wait for a"
                " `response.created` before the next frame",
                code="too_many_queued",
            )
