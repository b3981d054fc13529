"""The lanes of one link, and what they share: how many of them sample, and how much may wait."""

from __future__ import annotations

import asyncio

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
        self._ready: dict[Lane, None] = {}  # in the order in which they came to rest
        self._waiting_bytes = 0

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
        """The link is gone. Nothing stays that only the collector could free."""
        for lane in self._lanes.values():
            lane.end()
        self._lanes.clear()
        self._ready.clear()

    # -- what lanes ask ------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        at_work = sum(lane.state.is_at_work for lane in self._lanes.values())
        return at_work >= SAMPLING_MAX

    def on_rest(self, lane: Lane) -> None:
        if lane.state.waiting and not lane.is_held:
            self._ready[lane] = None
        while self._ready and not self.is_full:
            first = next(iter(self._ready))
            del self._ready[first]
            first.start_next()

    def hold(self, byte_count: int) -> None:
        self._waiting_bytes += byte_count

    def check_may_wait(self, byte_count: int) -> None:
        if self._waiting_bytes + byte_count > WAITING_BYTES_MAX:
            raise LimitExceeded(
                f"what waits on one link may hold {WAITING_BYTES_MAX} bytes; wait for a"
                " `response.created` before the next frame",
                code="too_many_queued",
            )
