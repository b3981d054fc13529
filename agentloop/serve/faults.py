"""What a peer is told when its message could not be handled."""

from __future__ import annotations

import logging

from agentloop.errors import AgentLoopError, ProtocolError, ServerFault

log = logging.getLogger(__name__)


def as_fault(error: Exception) -> AgentLoopError:
    """The one error for whatever went wrong. A bug of ours is logged, and nothing of it told."""
    if isinstance(error, AgentLoopError):
        return error
    if isinstance(error, RecursionError):  # it decoded, but with no room left to be looked at
        return ProtocolError("the frame: nested too deeply")
    log.error("a message could not be handled", exc_info=error)
    return ServerFault("the server failed")
