"""What drives over a WebSocket share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import quote

from agentloop.drive.api import Refused, Stop
from agentloop.drive.event import CREATED, TERMINALS, ServerEvent, decode_event
from agentloop.errors import ProtocolError
from agentloop.link.websocket import connect
from agentloop.wire import codec
from agentloop.wire.requests import Cancel, ClientMessage, Close, Create

if TYPE_CHECKING:
    from agentloop.clock import Clock
    from agentloop.ids import IdSource
    from agentloop.link.api import Link, Tap
    from agentloop.wire.items import TypedItem


def socket_url(url: str, protocol: str) -> str:
    """Where the WebSocket of the server at this base URL (`http://host:port`) is."""
    scheme, _, place = url.partition("://")
    socket_scheme = "wss" if scheme == "https" else "ws"
    return f"{socket_scheme}://{place}/v1/responses?protocol={quote(protocol)}"


class SocketDrive:
    """A drive without its design's own messages.

    Attributes:
        response_id: known from `response.created` on.
    """

    name: ClassVar[str]
    protocol: ClassVar[str]  # what `?protocol=` asks for
    is_server_run: ClassVar[bool] = False
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, link: Link, ids: IdSource) -> None:
        self.response_id: str | None = None
        self._link = link
        self._ids = ids

    @classmethod
    async def connect(
        cls, url: str, *, clock: Clock, ids: IdSource, tap: Tap | None = None
    ) -> Self:
        link = await connect(socket_url(url, cls.protocol), clock=clock, headers=cls.headers)
        link.tap = tap
        return cls(link, ids)

    @property
    def last_received_s(self) -> float:
        return self._link.last_received_s

    def create(self, request: Create) -> None:
        self._send(request)

    async def recv(self) -> ServerEvent:
        event = decode_event(await self._link.recv())
        if event.type == "error":
            raise _refusal(event)
        if event.type == CREATED and event.response is not None:
            self.response_id = event.response.id
        return event

    def stop_of(self, event: ServerEvent) -> Stop | None:
        if event.type not in TERMINALS:
            return None
        if event.response is None:
            raise ProtocolError(f"{event.type} without its Response", param="response")
        return Stop(event.response, is_final=True)

    def resume(self, items: Sequence[TypedItem]) -> None:
        raise ProtocolError(f"design {self.name} takes no input after its request")

    def close(self) -> None:
        self._send(Close(response_id=self.response_id, event_id=self._event_id()))

    def cancel(self) -> None:
        self._send(Cancel(response_id=self.response_id, event_id=self._event_id()))

    async def disconnect(self) -> None:
        await self._link.close()

    def _event_id(self) -> str:
        return self._ids.draw("evt")

    def _send(self, message: ClientMessage) -> None:
        self._link.send([codec.encode(message)])


def _refusal(event: ServerEvent) -> Refused:
    if event.error is None:
        raise ProtocolError("an error frame without its error", param="error")
    refused = Refused(
        event.error.message or "the server gave no reason",
        param=event.error.param,
        code=event.error.code,
    )
    refused.status = event.status or refused.status
    return refused
