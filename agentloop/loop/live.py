"""Every live Response, held strongly with the task that runs it; ended ones for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

from agentloop.core.context import EMPTY, Context
from agentloop.core.keys import Keys
from agentloop.core.response import parent_not_found
from agentloop.errors import LimitExceeded, UnknownResponse
from agentloop.loop.live_response import Admitted, Listener, LiveResponse, Shared
from agentloop.loop.timer import Timer

ENDED_MAX = 1_000  # ended Responses that still answer repeats, attaches and GET
ENDED_BYTES_MAX = 256 * 2**20  # what their clients sent and heard
KEYS_MAX = 10_000
LIVE_MAX = 20_000
LIVE_BYTES_MAX = 8 * 2**30  # what their clients sent; resident it is about three times that


class Live:
    """The Responses of one server, by id.

    Attributes:
        create_keys: the id of the Response that each create's `event_id` made.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.create_keys: Keys[str] = Keys(KEYS_MAX)
        self._live: dict[str, LiveResponse] = {}
        self._ended: OrderedDict[str, LiveResponse] = OrderedDict()
        self._ended_bytes = 0
        self._forgotten: set[str] = set()
        self._expiries: dict[str, Timer] = {}

    def __iter__(self) -> Iterator[LiveResponse]:
        return iter(tuple(self._live.values()))

    def create(
        self,
        admitted: Admitted,
        listener: Listener,
        *,
        parent: Context = EMPTY,
        received_s: float,
        byte_count: int,
    ) -> LiveResponse:
        """A new Response, told to its listener and started."""
        live = LiveResponse(admitted, self.shared, parent, received_s, byte_count)
        live.response.create(admitted.head, admitted.entries)
        live.listener = listener
        self._live[live.response.id] = live
        live.hold(byte_count)
        live.publish()
        live.task = asyncio.get_running_loop().create_task(live.run(), name=live.response.id)
        live.task.add_done_callback(lambda _: self._retire(live))
        return live

    def check_may_open(self) -> None:
        """Raises LimitExceeded (`too_many_responses`) where no more may be open."""
        held_bytes = self.shared.load.received_bytes
        if len(self._live) >= LIVE_MAX or held_bytes >= LIVE_BYTES_MAX:
            raise LimitExceeded(
                f"{len(self._live)} Responses are open and hold {held_bytes} bytes; close some, or"
                " wait until they end",
                code="too_many_responses",
            )

    def get(self, response_id: str) -> LiveResponse:
        """The Response with this id.

        Raises:
            UnknownResponse: there is none, or it ended too long ago.
        """
        live = self._live.get(response_id) or self._ended.get(response_id)
        if live is None:
            raise UnknownResponse(f"no Response {response_id!r}", param="response_id")
        return live

    def parent(self, response_id: str | None) -> Context:
        """The context that a create with this `previous_response_id` goes on from.

        Raises:
            ClientFault: `previous_response_not_found`.
            StateConflict: `response_not_finished`.
        """
        if response_id is None:
            return EMPTY
        try:
            response = self.get(response_id).response
        except UnknownResponse:
            raise parent_not_found(response_id) from None
        if not (response.config.store or response.is_open):
            raise parent_not_found(response_id)
        return response.as_parent()

    def forget(self, response_id: str) -> None:
        """Nobody may ask for this Response any more: it is gone as soon as it has ended."""
        if response_id in self._ended:
            self._drop(response_id)
        elif response_id in self._live:
            self._forgotten.add(response_id)

    def _retire(self, live: LiveResponse) -> None:
        live.end_abandoned()
        live.release()
        response, response_id = live.response, live.response.id
        self._live.pop(response_id, None)
        self._ended[response_id] = live
        self._ended_bytes += live.byte_count
        if response_id in self._forgotten:
            self._drop(response_id)
        elif not response.config.store and response.config.is_detachable:
            self._expire(response_id, response.config.options.detach_ttl_s)
        while len(self._ended) > ENDED_MAX or self._ended_bytes > ENDED_BYTES_MAX:
            self._drop(next(iter(self._ended)))

    def _expire(self, response_id: str, ttl_s: float) -> None:
        """What is not stored answers repeats and attaches for this long after its terminal."""
        expiry = self._expiries[response_id] = Timer(self.shared.clock)
        expiry.start(ttl_s, lambda: self._drop(response_id))

    def _drop(self, response_id: str) -> None:
        expiry = self._expiries.pop(response_id, None)
        if expiry is not None:
            expiry.stop()
        live = self._ended.pop(response_id)
        self._ended_bytes -= live.byte_count
        self._forgotten.discard(response_id)
        self.create_keys.release(live.event_id, response_id)
        self.shared.journal.forget(response_id)

    async def close(self) -> None:
        """End all as the loss of their links would, those that ends bring forth too, and wait
        for every task."""
        while lives := tuple(self._live.values()):
            for live in lives:
                live.end_detached()
                live.cancel()
            await asyncio.wait([live.task for live in lives if live.task is not None])
            await asyncio.sleep(0)  # the tasks' callbacks retire them
        for expiry in self._expiries.values():
            expiry.stop()
