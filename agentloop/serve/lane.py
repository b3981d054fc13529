"""A lane of a link: it carries one Response at a time; creates wait for the turn's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from agentloop.admission.admit import admit_input, fingerprint
from agentloop.core.lanes import LaneState
from agentloop.errors import AgentLoopError, LimitExceeded, ProtocolError
from agentloop.link.api import Link
from agentloop.loop.live import Live
from agentloop.loop.live_response import Admitted, LiveResponse
from agentloop.wire import codec, events
from agentloop.wire.requests import Append, Attach, Inject

APPENDS_MAX = 64
APPEND_BYTES_MAX = 16 * 2**20

Refuse = Callable[[AgentLoopError, codec.Envelope], None]


class Received(Struct, frozen=True):
    """When a frame came and how large it was."""

    at_s: float
    byte_count: int


class WaitingCreate(Struct):
    """A create that waits, with the appends that belong to it."""

    admitted: Admitted
    received: Received
    appends: list[tuple[Append, Received]] = []

    def keep(self, message: Append, received: Received) -> None:
        """An append for it came.

        Raises:
            LimitExceeded: `too_many_queued`, more than may be kept unread.
        """
        kept_bytes = sum(kept.byte_count for _, kept in self.appends) + received.byte_count
        if len(self.appends) >= APPENDS_MAX or kept_bytes > APPEND_BYTES_MAX:
            raise LimitExceeded(
                f"a waiting create keeps at most {APPENDS_MAX} appends of together"
                f" {APPEND_BYTES_MAX} bytes; send them after its `response.created`",
                code="too_many_queued",
            )
        self.appends.append((message, received))


class Lane:
    """One lane. It is the `Listener` of the Response it carries.

    Args:
        name: the `stream_id` that its events bear; None for the default lane.
        refuse: sends an error frame for a message that is found wrong later.
    """

    def __init__(self, name: str | None, link: Link, live: Live, refuse: Refuse) -> None:
        self.name = name
        self.link = link
        self.state: LaneState[WaitingCreate] = LaneState()
        self._live = live
        self._refuse = refuse
        self._unstored: list[str] = []  # what nobody may ask for once the link is gone

    # -- messages ------------------------------------------------------------------------------

    def create(self, admitted: Admitted, received: Received) -> None:
        """Open a Response; the one that is open is superseded, after its turn if it is at work.

        Raises:
            LimitExceeded: `too_many_queued`.
            ClientFault: the parent is not there, or not ready.
        """
        create = self.state.receive(WaitingCreate(admitted, received))
        if create is not None:
            self._start(create)

    def _start(self, create: WaitingCreate) -> None:
        parent = self._live.parent(create.admitted.config.previous_response_id)
        previous = self.state.current
        if previous is not None and previous.is_open:
            self._live.get(previous.id).supersede(self)
        live = self._live.create(
            create.admitted,
            self,
            parent=parent,
            received_s=create.received.at_s,
            byte_count=create.received.byte_count,
        )
        self.state.carry(live.response)
        if not (live.response.config.store or live.response.config.is_detachable):
            self._unstored.append(live.response.id)
        for message, received in create.appends:
            try:
                self.append(message, received, live)
            except AgentLoopError as fault:
                self._refuse(fault, codec.Envelope("", message.event_id, None, self.name))

    def append(
        self, message: Append | Inject, received: Received, live: LiveResponse | None
    ) -> None:
        """Outputs and messages for a Response; without an id, for the create received last.

        Raises:
            ClientFault: the Response, a call, an item or the key is not right; nothing changed.
        """
        if live is None and isinstance(message, Append) and self.state.last is not None:
            self.state.last.keep(message, received)
            return
        live = live or self.target()
        response = live.response
        payload = fingerprint(message.input) if message.event_id is not None else b""
        repeated = response.repeat_of(message.event_id, payload)
        if repeated is not None:
            self.send([repeated], live.position)
            return
        entries = admit_input(message.input, response.calls.find)
        live.receive(received.at_s, received.byte_count)
        is_inject = isinstance(message, Inject)
        accepted = response.append(entries, message.event_id, payload, is_inject=is_inject)
        live.publish()
        if not live.is_heard_on(self.link):
            self.send([accepted], live.position)

    def attach(self, message: Attach) -> None:
        """Take a Response over, or watch it: what it is, what was said, then live.

        Raises:
            StateConflict: `lane_busy`.
            ProtocolError: `starting_after` names an event that was never said.
        """
        live = self._live.get(message.response_id)
        self.state.check_free_for(live.response)
        next_seq = live.response.transcript.next_seq
        if not -1 <= message.starting_after < next_seq:
            raise ProtocolError(
                f"starting_after must be -1 or a number that was said, below {next_seq}",
                param="starting_after",
            )
        is_observing = message.observe and live.listener is not self
        self.state.carry(live.response, is_observing=is_observing)
        if message.observe:
            live.observe(self)
        else:
            live.attach(self)
        self._replay(live, message.starting_after)

    def _replay(self, live: LiveResponse, starting_after: int) -> None:
        response = live.response
        assert response.state is not None
        attached = events.Attached(
            response.id,
            response.state.value,
            response.attach_epoch,
            response.transcript.next_seq,
            response.pending_calls(),
            sorted(response.keys),
        )
        frames = [codec.encode(attached), *live.frames_after(starting_after)]
        self.send([*frames, codec.encode(events.ReplayDone(response.id))], live.position)

    def target(self) -> LiveResponse:
        """The Response that a message without an id means.

        Raises:
            UnknownResponse: the lane carries none.
        """
        return self._live.get(self.state.target().id)

    # -- the Response's listener ---------------------------------------------------------------

    def send(self, frames: Sequence[bytes], position: int) -> None:
        named = frames if self.name is None else codec.with_stream_id(frames, self.name)
        self.link.send(named, position)

    def on_stop(self) -> None:
        """The turn's end is where a waiting create takes over."""
        while (create := self.state.next()) is not None:
            try:
                self._start(create)
                break
            except AgentLoopError as fault:
                event_id = create.admitted.event_id
                self._live.create_keys.release(event_id)
                self._refuse(fault, codec.Envelope("", event_id, None, self.name))

    def lose(self, live: LiveResponse) -> None:
        """Another lane took the Response over."""
        self.send([codec.encode(events.Detached(live.response.id))], live.position)
        if self.state.current is live.response:
            self.state.carry(None)
            self.on_stop()

    def end(self) -> None:
        """The link is gone."""
        for create in self.state.clear():
            self._live.create_keys.release(create.admitted.event_id)
        if self.state.current is not None and self.state.current.is_open:
            self._live.get(self.state.current.id).leave(self)
        for response_id in self._unstored:
            self._live.forget(response_id)
