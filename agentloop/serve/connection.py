"""One link on the server: reads its messages, in order, and gives them to its lanes.

Handling a message never waits, so a running turn cannot hold the reader back. One bad frame costs
one error frame, and nothing else changes.
"""

from __future__ import annotations

import asyncio

from msgspec import Raw

from agentloop.admission.admit import fingerprint
from agentloop.errors import (
    AgentLoopError,
    ClientFault,
    LinkClosed,
    ProtocolError,
    StateConflict,
    UnknownResponse,
)
from agentloop.link.api import Link
from agentloop.loop.design import Design
from agentloop.loop.live_response import LiveResponse
from agentloop.serve.faults import as_fault
from agentloop.serve.lane import Lane
from agentloop.serve.lanes import Lanes
from agentloop.serve.service import Service
from agentloop.serve.waiting import Received
from agentloop.wire import codec, events
from agentloop.wire.requests import Append, Attach, Cancel, ClientMessage, Close, Create, Inject

EVENT_ID_CHARS_MAX = 512
BURST_FRAMES_MAX = 64


class Connection:
    """The server's side of one link."""

    def __init__(self, link: Link, service: Service, design: Design) -> None:
        self._link = link
        self._service = service
        self._design = design

    async def run(self) -> None:
        """Until the link is gone; then each lane's Response waits for another link, or ends."""
        async with asyncio.TaskGroup() as group:
            lanes = Lanes(self._link, self._service.live, group, self._refuse)
            try:
                while True:
                    for _ in range(BURST_FRAMES_MAX):
                        await self._read(lanes)
                    await asyncio.sleep(0)  # frames that are here already are read without a pause
            except LinkClosed:
                pass
            finally:
                lanes.end()

    async def _read(self, lanes: Lanes) -> None:
        try:
            frame = await self._link.recv()
        except ProtocolError as fault:
            self._refuse(fault, codec.Envelope())
            return
        try:
            self._handle(codec.decode_message(frame), frame, lanes)
        except Exception as error:
            self._refuse(as_fault(error), codec.envelope(frame))

    def _handle(self, message: ClientMessage, frame: bytes, lanes: Lanes) -> None:
        if message.event_id is not None and len(message.event_id) > EVENT_ID_CHARS_MAX:
            raise ProtocolError(
                f"event_id takes at most {EVENT_ID_CHARS_MAX} characters", param="event_id"
            )
        received = Received(self._link.last_received_s, len(frame))
        lane = lanes.get(message.stream_id)
        match message:
            case Create():
                self._create(message, lane, received, frame)
            case Append():
                lane.append(message, received, self._named(message, lane))
            case Inject():
                self._inject(message, lane, received)
            case Attach():
                lane.attach(message)
            case Cancel():
                lane.cancel(self._named(message, lane))
            case Close():
                lane.close(message, received, self._named(message, lane))
        lanes.keep(lane)

    def _create(self, message: Create, lane: Lane, received: Received, frame: bytes) -> None:
        """A new Response; or, for a key that is known, the one it made before."""
        keys, event_id = self._service.live.create_keys, message.event_id
        payload = fingerprint(Raw(frame)) if event_id is not None else b""
        known = keys.find(event_id, payload)
        if known is not None:
            self._repeat(known, lane)
            return
        admitted = self._service.admit(message, self._design)
        keys.keep(event_id, payload, admitted.config.id)
        try:
            lane.create(admitted, received)
        except BaseException:
            keys.release(event_id, admitted.config.id)
            raise

    def _repeat(self, response_id: str, lane: Lane) -> None:
        """The same create again: like attaching from the start."""
        try:
            lane.attach(Attach(response_id=response_id))
        except UnknownResponse:
            raise StateConflict(
                "this create waits for its lane; its Response is on its way",
                code="response_in_progress",
            ) from None

    def _inject(self, message: Inject, lane: Lane, received: Received) -> None:
        """An append that has words of its own for a refusal, too."""
        number = 0
        try:
            live = self._service.live.get(message.response_id)
            number = live.response.transcript.last_seq
            lane.append(message, received, self._named(message, lane))
        except ClientFault as fault:
            body = events.error_body(fault)
            failed = events.InjectFailed(
                number, message.response_id, message.event_id, body, message.input
            )
            lane.say([codec.encode(failed)], self._service.live.shared.journal.position)

    def _named(self, message: Append | Inject | Cancel | Close, lane: Lane) -> LiveResponse | None:
        """The Response that a message names by id; None where it names none.

        Raises:
            UnknownResponse: there is none with this id.
            ProtocolError: the lane it also names carries another one.
        """
        if message.response_id is None:
            return None
        live = self._service.live.get(message.response_id)
        if message.stream_id is not None and lane.state.current is not live.response:
            raise ProtocolError(
                "response_id and stream_id name different Responses; send one of them",
                param="stream_id",
            )
        return live

    def _refuse(self, fault: AgentLoopError, envelope: codec.Envelope) -> None:
        """One error frame, not before the records that it may reveal."""
        position = self._service.live.shared.journal.position
        self._link.send([codec.encode(error_event(fault, envelope))], position)


def error_event(fault: AgentLoopError, envelope: codec.Envelope) -> events.ErrorEvent:
    """The one error frame of a fault; it echoes the ids that the faulty frame gave."""
    return events.ErrorEvent(
        status=fault.status,
        error=events.error_body(fault),
        event_id=envelope.event_id,
        response_id=envelope.response_id,
        stream_id=envelope.stream_id,
    )
