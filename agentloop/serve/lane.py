"""A lane of a link: it carries one Response at a time; creates wait for the turn's end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from agentloop.admission.admit import admit_input, fingerprint
from agentloop.core.lanes import LaneState
from agentloop.core.response import calls_pending
from agentloop.errors import AgentLoopError, ProtocolError, UnknownResponse
from agentloop.link.api import Link
from agentloop.loop.live import ENDED_MAX, Live
from agentloop.loop.live_response import Admitted, LiveResponse
from agentloop.serve.faults import as_fault
from agentloop.serve.replay import Replay, pieces
from agentloop.serve.waiting import Received, WaitingCreate
from agentloop.wire import codec, events
from agentloop.wire.requests import Append, Attach, Close, Inject

Refuse = Callable[[AgentLoopError, codec.Envelope], None]


class Traffic(Protocol):
    """What a lane asks of the link's other lanes."""

    @property
    def is_full(self) -> bool:
        """Whether as many lanes sample as may."""

    def on_rest(self, lane: Lane) -> None:
        """Something may have come to rest: this lane lines up with the creates it has, if nothing
        holds it back, and whichever lane is first in line may `start_next`."""

    def check_may_wait(self, byte_count: int) -> None:
        """Raises LimitExceeded (`too_many_queued`) where this much more may not wait."""

    def hold(self, byte_count: int) -> None:
        """This much more waits; less, where it is negative."""


class Lane:
    """One lane. It is the `Listener` of the Response it carries.

    Args:
        name: the `stream_id` that its events bear; None for the default lane.
        refuse: sends an error frame for a message that is found wrong later.
    """

    def __init__(
        self,
        name: str | None,
        link: Link,
        live: Live,
        traffic: Traffic,
        group: asyncio.TaskGroup,
        refuse: Refuse,
    ) -> None:
        self.name = name
        self.link = link
        self.state: LaneState[WaitingCreate] = LaneState()
        self._live = live
        self._traffic = traffic
        self._group = group
        self._refuse = refuse
        self._replay: Replay | None = None
        # What nobody may ask for once the link is gone. Of what has ended, no more is kept.
        self._unstored: deque[str] = deque(maxlen=ENDED_MAX + 1)

    # -- creates -------------------------------------------------------------------------------

    def create(self, admitted: Admitted, received: Received) -> None:
        """Open a Response; the one that is open is superseded, after its turn if it is at work.

        Raises:
            LimitExceeded: `too_many_queued`, `too_many_responses`.
            ClientFault: the parent is not there, or not ready.
        """
        create = WaitingCreate(admitted, received)
        if self.is_held or self.state.waiting or self._traffic.is_full:
            self._traffic.check_may_wait(create.byte_count)
            self.state.hold(create)
            self._traffic.hold(create.byte_count)
            self._traffic.on_rest(self)
        else:
            self._start(create)

    @property
    def is_held(self) -> bool:
        """Whether this lane itself makes creates wait."""
        return self.state.is_at_work or self._replay is not None

    def start_next(self) -> None:
        """The create that waits longest takes over; without any, what was open goes on."""
        while not self.is_held and (create := self._next()) is not None:
            try:
                self._start(create)
            except Exception as error:
                self._refuse_waiting(create, as_fault(error))
        self._go_on()

    def _next(self) -> WaitingCreate | None:
        create = self.state.next()
        if create is not None:
            self._traffic.hold(-create.byte_count)
        return create

    def _go_on(self) -> None:
        if self.state.own is not None and self.state.own.is_open:
            self._live.get(self.state.own.id).go_on()

    def _refuse_waiting(self, create: WaitingCreate, fault: AgentLoopError) -> None:
        """The create, and all that was for the Response that is not to be."""
        self._give_up(create)
        self._refuse_one(create.admitted.event_id, fault)
        for message, _ in create.frames:
            unknown = UnknownResponse("the create before this was refused", param="response_id")
            self._refuse_one(message.event_id, unknown)

    def _refuse_one(self, event_id: str | None, fault: AgentLoopError) -> None:
        self._refuse(fault, codec.Envelope("", event_id, None, self.name))

    def _give_up(self, create: WaitingCreate) -> None:
        """Its key is free again."""
        config = create.admitted.config
        self._live.create_keys.release(create.admitted.event_id, config.id)

    def _start(self, create: WaitingCreate) -> None:
        parent = self._live.parent(create.admitted.config.previous_response_id)
        previous = self.state.current
        if self.state.own is None or not self.state.own.is_open:
            self._live.check_may_open()
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
        for message, received in create.frames:
            self._handle_kept(message, received, live)

    def _handle_kept(self, message: Append | Close, received: Received, live: LiveResponse) -> None:
        try:
            if isinstance(message, Append):
                self.append(message, received, live)
            else:
                self.close(message, received, live)
        except Exception as error:
            self._refuse_one(message.event_id, as_fault(error))

    # -- other messages ------------------------------------------------------------------------

    def append(
        self, message: Append | Inject, received: Received, live: LiveResponse | None
    ) -> None:
        """Outputs and messages for a Response; without an id, for the create received last.

        Raises:
            ClientFault: the Response, a call, an item or the key is not right; nothing changed.
        """
        if live is None and isinstance(message, Append) and self._keep(message, received):
            return
        live = live or self.target()
        response = live.response
        payload = fingerprint(message.input) if message.event_id is not None else b""
        repeated = response.repeat_of(message.event_id, payload)
        if repeated is not None:
            self.say([repeated], live.position)
            return
        live.check_may_receive(received.byte_count)
        entries = admit_input(message.input, response.calls.find)
        is_inject = isinstance(message, Inject)
        accepted = response.append(entries, message.event_id, payload, is_inject=is_inject)
        live.receive(received.at_s, received.byte_count)
        live.publish()
        if not live.is_heard_on(self.link):
            self.say([accepted], live.position)

    def _keep(self, message: Append | Close, received: Received) -> bool:
        """Whether this belongs to a create that waits; then it waits with it."""
        create = self.state.last
        if create is None:
            return False
        self._traffic.check_may_wait(received.byte_count)
        create.keep(message, received)
        self._traffic.hold(received.byte_count)
        return True

    def cancel(self, live: LiveResponse | None) -> None:
        """End a Response now; without an id, the one at work, else the create that waits longest
        (which is created for it), else the one that is open.

        Raises:
            UnknownResponse: there is none, or the create is refused.
            ClientFault: `response_already_completed`.
        """
        create = self._next() if live is None and not self.state.is_at_work else None
        if create is not None:
            self._create_to_cancel(create)
        live = live or self.target()
        live.response.cancel()
        live.publish()

    def _create_to_cancel(self, create: WaitingCreate) -> None:
        self._stop_replay()
        try:
            self._start(create)
        except AgentLoopError as fault:
            self._refuse_waiting(create, fault)
            self._go_on()
            raise UnknownResponse(
                "the create that this was for was refused", param="response_id"
            ) from fault

    def close(self, message: Close, received: Received, live: LiveResponse | None) -> None:
        """End a Response well; without an id, that of the create received last.

        Raises:
            UnknownResponse: there is none.
            ClientFault: `response_already_completed`; what only its client could ask for is gone.
            StateConflict: `calls_pending`.
            LimitExceeded: as many wait as may.
        """
        if live is None and self._keep(message, received):
            return
        live = live or self.target()
        if not (live.is_open or live.response.config.store):
            self._live.forget(live.response.id)
        echo = codec.Envelope("", message.event_id, live.response.id, message.stream_id)
        live.close(lambda: self._refuse(calls_pending(), echo))

    def attach(self, message: Attach) -> None:
        """Take a Response over, or watch it: what it is, what was said, then live.

        Raises:
            UnknownResponse: there is none.
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
        self._stop_replay()
        if message.observe:
            live.observe(self)
        else:
            live.attach(self)
        self.state.carry(live.response, is_observing=is_observing)
        self._say_attached(live)
        self._say_again(live, message.starting_after)

    def target(self) -> LiveResponse:
        """The Response that a message without an id means.

        Raises:
            UnknownResponse: the lane carries none.
        """
        return self._live.get(self.state.target().id)

    # -- replay --------------------------------------------------------------------------------

    def _say_attached(self, live: LiveResponse) -> None:
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
        self.say([codec.encode(attached)], live.position)

    def _say_again(self, live: LiveResponse, starting_after: int) -> None:
        def on_end(fault: AgentLoopError | None) -> None:
            self._end_replay(live, fault)

        said = pieces(live, self._live.shared.journal, starting_after)
        self._replay = Replay(live, said, self.link, self.say, on_end)
        self._replay.start(self._group)

    def _end_replay(self, live: LiveResponse, fault: AgentLoopError | None) -> None:
        """All was said, and events go on live; or what was to be said is gone."""
        self._replay = None
        if fault is None:
            self.say([codec.encode(events.ReplayDone(live.response.id))], live.position)
        else:
            self.state.carry(None)
            live.leave(self)
            self._refuse(fault, codec.Envelope("", None, live.response.id, self.name))
        self.on_stop()

    def _stop_replay(self) -> None:
        if self._replay is not None:
            self._replay.stop()
            self._replay = None

    # -- the Response's listener ---------------------------------------------------------------

    def send(self, frames: Sequence[bytes], position: int) -> None:
        """Live events; while a replay goes on, they are in one of its later pieces."""
        if self._replay is None:
            self.say(frames, position)

    def say(self, frames: Sequence[bytes], position: int) -> None:
        """Frames on this lane, once `position` is durable."""
        named = frames if self.name is None else codec.with_stream_id(frames, self.name)
        self.link.send(named, position)

    def on_stop(self) -> None:
        """The turn's end is where a waiting create takes over."""
        self._traffic.on_rest(self)

    def lose(self, live: LiveResponse) -> None:
        """Another lane took the Response over."""
        self._stop_replay()
        self.say([codec.encode(events.Detached(live.response.id))], live.position)
        if self.state.current is live.response:
            self.state.carry(None)
            self.on_stop()

    def end(self) -> None:
        """The link is gone."""
        self._stop_replay()
        for create in self.state.clear():
            self._give_up(create)
        if self.state.current is not None and self.state.current.is_open:
            self._live.get(self.state.current.id).leave(self)
        self.state.carry(None)
        for response_id in self._unstored:
            self._live.forget(response_id)
