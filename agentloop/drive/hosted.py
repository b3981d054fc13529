"""`hosted`: one request; the server's own tools run every call."""

from __future__ import annotations

from msgspec.structs import replace

from agentloop.drive.socket import SocketDrive
from agentloop.wire.requests import AgentLoopOptions, Create


class HostedDrive(SocketDrive):
    """Asks once and listens."""

    name = "hosted"
    is_server_run = True
    protocol = "hosted"

    def create(self, request: Create) -> None:
        options = AgentLoopOptions(final="complete")
        self._send(replace(request, agent_loop=options, event_id=self._event_id()))
