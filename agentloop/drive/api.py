"""What a drive is: the client half of one design, over one link.

    create ─► recv … recv ─► Stop ─► resume ─► recv … recv ─► Stop(is_final)

A drive turns what an agent wants (start, answer, rest, cancel) into the frames of its design, and
says of each event whether the loop has stopped there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from msgspec import Struct

from agentloop.drive.event import ResponseShown, ServerEvent
from agentloop.errors import AgentLoopError

if TYPE_CHECKING:
    from agentloop.clock import Clock
    from agentloop.ids import IdSource
    from agentloop.link.api import Tap
    from agentloop.wire.items import TypedItem
    from agentloop.wire.requests import Create


class Refused(AgentLoopError):
    """The server answered with an error frame; `code`, `status` and `param` are the frame's."""

    code = "refused"


class Stop(Struct, frozen=True):
    """The loop has stopped, for the client or for good.

    Attributes:
        pending: the ids of the calls that wait for the client, in call order.
        is_final: the Response has ended.
    """

    response: ResponseShown
    pending: tuple[str, ...] = ()
    is_final: bool = False


class Drive(Protocol):
    """The client half of a design.

    Attributes:
        name: the design.
        is_server_run: the server runs the function tools; the client only listens.
        last_received_s: the clock when the last frame arrived.
    """

    name: ClassVar[str]
    is_server_run: ClassVar[bool]

    @classmethod
    async def connect(
        cls, url: str, *, clock: Clock, ids: IdSource, tap: Tap | None = None
    ) -> Self:
        """Open a link to the server at this base URL.

        Raises:
            LinkClosed: there is no server, or it refused.
        """

    @property
    def last_received_s(self) -> float: ...

    def create(self, request: Create) -> None:
        """Start the session."""

    async def recv(self) -> ServerEvent:
        """The next event.

        Raises:
            Refused: it is an error frame.
            LinkClosed: the link has ended.
            ProtocolError: the server sent what no server may send.
        """

    def stop_of(self, event: ServerEvent) -> Stop | None:
        """What the event means for the loop; None where it goes on."""

    def resume(self, items: Sequence[TypedItem]) -> None:
        """Go on from a stop that is not final, with tool outputs or the user's next message."""

    def close(self) -> None:
        """Ask for a good end of a Response that rests; its terminal follows."""

    def cancel(self) -> None:
        """Ask for the end now; a terminal follows, or a refusal where there was nothing to end."""

    async def disconnect(self) -> None:
        """Close the link."""
