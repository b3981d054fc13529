"""`ws-append`: one Response for the whole session, resumed by each `response.append`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec import Raw
from msgspec.structs import replace

from agentloop.drive.api import Stop
from agentloop.drive.event import DONE, ServerEvent
from agentloop.drive.socket import SocketDrive
from agentloop.errors import ProtocolError
from agentloop.wire import codec
from agentloop.wire.requests import AgentLoopOptions, Append, Create

if TYPE_CHECKING:
    from agentloop.wire.items import TypedItem

DETACH_TTL_S = 86_400


class AppendDrive(SocketDrive):
    """Creates once, then sends only what the tools said."""

    name = "ws-append"
    protocol = "append"  # said twice: gateways drop headers that they don't know
    headers: ClassVar[Mapping[str, str]] = {"OpenAI-Beta": "responses_websockets=2026-02-04"}

    def create(self, request: Create) -> None:
        options = AgentLoopOptions(
            final="hold", detach_ttl_s=DETACH_TTL_S, on_tool_timeout="result"
        )
        self._send(replace(request, agent_loop=options, event_id=self._event_id()))

    def stop_of(self, event: ServerEvent) -> Stop | None:
        if event.type != DONE:
            return super().stop_of(event)
        if event.response is None:
            raise ProtocolError("response.done without its Response", param="response")
        if event.response.state == "sampling":  # an append made it go straight on
            return None
        pending = (call.call_id for call in event.response.pending_tool_calls)
        return Stop(event.response, tuple(pending))

    def resume(self, items: Sequence[TypedItem]) -> None:
        self._send(
            Append(
                input=Raw(codec.encode(items)),
                response_id=self.response_id,
                event_id=self._event_id(),
            )
        )
