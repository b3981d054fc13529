"""One Response at work: its state, its loop, who hears it, its timers.

`publish` is the one way out: what the Response has committed goes to the journal, then to the
links under the position the journal gave, then to the loop that may wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct, field

from agentloop.behaviors.api import Behavior
from agentloop.behaviors.attempts import Attempts
from agentloop.breakdown import Breakdown, Timeline
from agentloop.clock import Clock
from agentloop.core.calls import Call
from agentloop.core.context import Context, Entry
from agentloop.core.records import AnyRecord, Config, Ended, TurnStarted
from agentloop.core.response import Response
from agentloop.core.states import State
from agentloop.engine.api import Engine, TokenIds
from agentloop.errors import LimitExceeded
from agentloop.journal.api import Journal
from agentloop.loop.design import Design
from agentloop.loop.sampling import HostedTools, Sampling
from agentloop.loop.timer import Timer

log = logging.getLogger(__name__)

INPUT_BYTES_MAX = 64 * 2**20
APPEND_OVERHEAD_BYTES = 1024  # kept beside its text: record, context, key, acceptance
TIMED_OUT = "The tool gave no result in time."
_NO_TIME_S = 0.001  # less may not move the clock at all


class Listener(Protocol):
    """Who hears a Response: a lane of a link.

    Attributes:
        link: the channel that the lane is on.
    """

    @property
    def link(self) -> object: ...

    def send(self, frames: Sequence[bytes], position: int) -> None:
        """Events, to be written once `position` is durable."""

    def on_stop(self) -> None:
        """The Response has stopped for the client, or ended."""

    def lose(self, live: LiveResponse) -> None:
        """Another lane took the Response over."""


class Load(Struct):
    """What clients have sent to the Responses that are open, in bytes."""

    received_bytes: int = 0


class Shared(Struct, frozen=True):
    """What all Responses of a server share."""

    clock: Clock
    journal: Journal
    attempts: Attempts
    admit_result: Callable[[Call, str], Entry]
    keepalive_s: float = 15.0
    load: Load = field(default_factory=Load)


class Admitted(Struct, frozen=True):
    """A create that was admitted: all that its Response needs, but for the parent's context."""

    config: Config
    head: TokenIds[int]
    entries: list[Entry]
    design: Design
    engine: Engine
    behavior: Behavior
    hosted: HostedTools
    event_id: str | None = None


class LiveResponse:
    """One Response at work: its state, its loop, its listeners, its timers."""

    def __init__(
        self,
        admitted: Admitted,
        shared: Shared,
        parent: Context,
        received_s: float,
        byte_count: int,
    ) -> None:
        self.response = Response(admitted.config, parent)
        self.design = admitted.design
        self.event_id = admitted.event_id
        self.breakdown = Breakdown(received_s, byte_count)
        self.listener: Listener | None = None
        self.position = 0
        self.byte_count = byte_count  # all that was received and said
        self._observers: list[Listener] = []
        self.task: asyncio.Task[None] | None = None
        self._shared = shared
        self._received_bytes = 0
        self._said_s = shared.clock.now()
        self._keepalive = Timer(shared.clock)
        self._tool_timeout = Timer(shared.clock)
        self._detach_ttl = Timer(shared.clock)
        self._sampling: Sampling | None = Sampling(
            self.response,
            engine=admitted.engine,
            behavior=admitted.behavior,
            attempts=shared.attempts,
            hosted=admitted.hosted,
            clock=shared.clock,
            breakdown=self.breakdown,
            publish=self.publish,
        )

    @property
    def timeline(self) -> Timeline:
        """Where the time of each turn so far went."""
        return Timeline(self.response.id, self.design.name, self.breakdown.turns)

    async def run(self) -> None:
        """The loop; a bug in it ends the Response instead of leaving its client waiting."""
        assert self._sampling is not None, "a Response runs once"
        try:
            await self._sampling.run()
        except asyncio.CancelledError as cancelled:
            # A task group's frame keeps the exception that keeps the frame (CPython 3.11), and with
            # it all that ran here.
            raise cancelled.with_traceback(None)  # noqa: B904
        except Exception:
            log.exception("the loop of %r failed", self.response)
            self.end_abandoned()

    def end_abandoned(self) -> None:
        """Nothing runs the Response any more: if it is open, a bug of ours ends it."""
        if self.is_open:
            self.response.end("failed", error=("server_error", "the server failed"))
            self.publish()

    @property
    def is_open(self) -> bool:
        return self.response.is_open

    def publish(self) -> None:
        """Journal, then links, then the loop: whatever the Response has committed."""
        commits = self.response.take()
        if commits:
            records = [commit.record for commit in commits]
            self.position = self._shared.journal.append(self.response.id, records)
            self._send([frame for commit in commits for frame in commit.frames])
            for record in records:
                if self._sampling is not None:
                    self._sampling.wake(record)
                self._follow(record)
        for refuse in self.response.take_refused_closes():
            refuse()

    def _send(self, frames: list[bytes]) -> None:
        if not frames:
            return
        self._said_s = self._shared.clock.now()
        size = sum(map(len, frames))
        self.byte_count += size
        self.breakdown.send(size)
        for listener in (self.listener, *self._observers):
            if listener is not None:
                listener.send(frames, self.position)

    def _follow(self, record: AnyRecord) -> None:
        """What else a record brings: timers, the resting lane, the end of the task."""
        if isinstance(record, TurnStarted) and not self._keepalive.is_running:
            self._keepalive.start(self._shared.keepalive_s, self._keep_alive)
        if record.kind in ("suspended", "appended", "resumed"):
            self._watch_calls()
        if record.kind in ("suspended", "idled"):
            self._keepalive.stop()
            self._tell_stop()
        if isinstance(record, Ended):
            self._retire()

    def _tell_stop(self) -> None:
        if self.listener is not None:
            self.listener.on_stop()

    def _retire(self) -> None:
        """The terminal was said: timers, listeners and the loop's task are done with."""
        for timer in (self._keepalive, self._tool_timeout, self._detach_ttl):
            timer.stop()
        self._tell_stop()
        self.listener = None
        self._observers.clear()
        if self.task is not asyncio.current_task():
            self.cancel()

    def _watch_calls(self) -> None:
        """The tool timeout runs while suspended, anew from each accepted append."""
        self._tool_timeout.stop()
        timeout_s = self.response.config.options.tool_timeout_s
        if timeout_s is not None and self.response.state is State.SUSPENDED:
            self._tool_timeout.start(timeout_s, self._expire_calls)

    def release(self) -> None:
        """The loop's task is done: what ran it goes, what it said and remembers stays."""
        self.task = None
        self._sampling = None
        self.hold(-self._received_bytes)

    def cancel(self) -> None:
        """Stop the loop; its engine work is aborted as it unwinds."""
        if self.task is not None:
            self.task.cancel()

    # -- links ---------------------------------------------------------------------------------

    def is_heard_on(self, link: object) -> bool:
        """Whether any lane of this link is told of events."""
        listeners = [*self._observers, *([self.listener] if self.listener else [])]
        return any(listener.link is link for listener in listeners)

    def observe(self, listener: Listener) -> None:
        """This listener reads along, as long as there is something to hear."""
        if not self.is_open:
            return
        if listener is not self.listener and listener not in self._observers:
            self._observers.append(listener)

    def attach(self, listener: Listener) -> None:
        """This listener takes over an open Response; the old one is told."""
        if not self.is_open:
            return
        self._forget(listener)
        previous, self.listener = self.listener, listener
        self._detach_ttl.stop()
        self.response.attach()
        self.publish()
        if previous is not None and previous is not listener:
            previous.lose(self)
        self.go_on()

    def leave(self, listener: Listener) -> None:
        """The listener's link is gone. Without its own, a Response waits for another, or ends."""
        self._forget(listener)
        if listener is not self.listener:
            return
        self.listener = None
        if self.is_open:
            self.response.lose_link()
            self.go_on()
        if self.is_open:
            ttl_s = self.response.config.options.detach_ttl_s
            self._detach_ttl.start(ttl_s, self._expire_detached)

    def _forget(self, observer: Listener) -> None:
        if observer in self._observers:
            self._observers.remove(observer)

    def receive(self, received_s: float, byte_count: int) -> None:
        """A frame for this Response came."""
        self.byte_count += byte_count
        self.hold(byte_count + APPEND_OVERHEAD_BYTES)
        self.breakdown.receive(received_s, byte_count)

    def hold(self, byte_count: int) -> None:
        """The server keeps this much more for the client, until the Response has ended."""
        self._received_bytes += byte_count
        self._shared.load.received_bytes += byte_count

    def check_may_receive(self, byte_count: int) -> None:
        """Raises LimitExceeded where the client would have sent more than a Response takes, each
        frame counted with `APPEND_OVERHEAD_BYTES`."""
        if self._received_bytes + byte_count + APPEND_OVERHEAD_BYTES > INPUT_BYTES_MAX:
            raise LimitExceeded(
                f"a Response takes {INPUT_BYTES_MAX} bytes of input; go on from it with a new"
                " create, compacted"
            )

    def close(self, refuse: Callable[[], None]) -> None:
        """End well; `refuse` is called where that turns out to be impossible at the turn's end.

        Raises:
            ClientFault, StateConflict, LimitExceeded: as `Response.close`.
        """
        self.response.close(refuse)
        self.publish()

    def supersede(self, lane: Listener) -> None:
        """End for a new create on this lane, which does not hear the terminal: its client would
        take it for the new Response's."""
        if lane is not self.listener:
            self._forget(lane)
            return
        self.listener = None
        self.response.supersede()
        self.publish()

    def go_on(self) -> None:
        """No create takes over any more; see `Response.go_on`."""
        self.response.go_on()
        self.publish()

    # -- timers --------------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        left_s = self._said_s + self._shared.keepalive_s - self._shared.clock.now()
        if left_s < _NO_TIME_S:
            self.response.keep_alive()
            self.publish()
            left_s = self._shared.keepalive_s
        self._keepalive.start(left_s, self._keep_alive)

    def _expire_calls(self) -> None:
        admit = self._shared.admit_result
        pending = self.response.calls.pending()
        self.response.expire_calls({call.call_id: admit(call, TIMED_OUT) for call in pending})
        self.publish()

    def _expire_detached(self) -> None:
        self.response.expire_detached()
        self.publish()

    def end_detached(self) -> None:
        """End as the loss of the link would, whatever the TTL."""
        if self.is_open:
            self.response.end_detached()
            self.publish()
