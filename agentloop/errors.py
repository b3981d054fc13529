"""Every error that crosses a border of agentloop, in one tree.

    AgentLoopError
    ├── ClientFault        the peer or the user asked for something that cannot be
    │   ├── ProtocolError      a frame, field or item is not what the wire allows
    │   ├── UnknownResponse    no such Response for this tenant
    │   ├── UnknownCall        an output names a call that was never announced
    │   ├── StateConflict      the Response's state forbids it (409)
    │   ├── KeyConflict        the same event_id came with another payload (422)
    │   ├── LimitExceeded      a limit was reached (429)
    │   └── ConfigError        a file, option, URL or plan of the command line is wrong
    ├── ServerFault        we could not do what was rightly asked
    │   ├── EngineFault        the engine failed; `is_retryable` says whether a retry may help
    │   ├── ToolFailed         a tool could not run; its message is for the model
    │   └── Deadlock           virtual time has nothing left to wait for
    └── LinkClosed         the message channel is gone

Each instance becomes exactly one error frame or HTTP body: `code`, `status`, `message`, `param`.
"""

from __future__ import annotations


class AgentLoopError(Exception):
    """The root. `code` and `status` are what the wire shows."""

    code = "server_error"
    status = 500
    kind = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class ClientFault(AgentLoopError):
    """The request is at fault; nothing has changed."""

    code = "invalid_request"
    status = 400
    kind = "invalid_request_error"


class ProtocolError(ClientFault):
    """A frame, a field or an item is not what the wire allows."""

    code = "invalid_input"


class UnknownResponse(ClientFault):
    """No such Response, or not this tenant's: the answer is the same."""

    code = "response_not_found"


class UnknownCall(ClientFault):
    """A tool output names a call that this Response never announced."""

    code = "call_not_found"


class StateConflict(ClientFault):
    """The Response is in a state that forbids this."""

    code = "state_conflict"
    status = 409


class KeyConflict(ClientFault):
    """An `event_id` came again with another payload."""

    code = "idempotency_conflict"
    status = 422


class LimitExceeded(ClientFault):
    """A limit was reached; the message names the limit."""

    code = "limit_exceeded"
    status = 429


class ConfigError(ClientFault):
    """A file, option, URL or plan is wrong. The message names the field and the fix."""

    code = "invalid_configuration"


class ServerFault(AgentLoopError):
    """The request was right and we could not do it."""


class EngineFault(ServerFault):
    """The engine failed. A retryable fault may be tried again from the recorded ids."""

    def __init__(self, message: str, *, code: str = "server_error", is_retryable: bool) -> None:
        super().__init__(message, code=code)
        self.is_retryable = is_retryable


class ToolFailed(ServerFault):
    """A tool could not do its work. The message is what the model reads."""

    code = "tool_failed"


class Deadlock(ServerFault):
    """Virtual time: no callback is ready, no timer is set, and the program has not ended."""

    code = "deadlock"


class LinkClosed(AgentLoopError):
    """The peer is gone. `close_code` is the WebSocket close code, where there is one."""

    code = "link_closed"
    status = 499

    def __init__(self, message: str = "the link is closed", *, close_code: int = 1006) -> None:
        super().__init__(message)
        self.close_code = close_code
