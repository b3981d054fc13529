"""A link: one channel of whole JSON text messages to one peer.

Everything that speaks to a peer (server, client half, agent, tests) does so through `Link`, so a
design can't tell a WebSocket from a pair of queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

MIB = 1 << 20
DRAINED_BYTES = MIB

NORMAL = 1000
NO_STATUS = 1005
CONNECTION_LOST = 1006
TOO_BIG = 1009
TRY_AGAIN_LATER = 1013

Tap = Callable[[Literal["in", "out"], bytes], None]


class LinkLimits(Struct, frozen=True, kw_only=True):
    """Every cap of a link.

    Attributes:
        message_bytes: the largest message taken from the peer; a larger one closes with 1009.
        queue_bytes: how much may wait for the peer to read it, or for the gate; more closes with
            1013. The default holds three of the largest messages: a burst within one turn of the
            event loop, such as the largest create told back twice, is no slow consumer.
        connect_timeout_s: for name look-up, connection, TLS and upgrade together.
        close_timeout_s: for flushing and the close handshake together.
        heartbeat_s: ping a silent peer this often, and give it up where no pong comes within half
            of it. None: never.
    """

    message_bytes: int = 16 * MIB
    queue_bytes: int = 48 * MIB
    connect_timeout_s: float = 10.0
    close_timeout_s: float = 5.0
    heartbeat_s: float | None = 30.0


DEFAULT_LIMITS = LinkLimits()


class Link(Protocol):
    """A message channel. One task reads it; anybody may send.

    A link can end in three ways: by the peer, by the network, or by itself (an oversized message,
    a peer that does not read). All of them come out of `recv`, and then its owner calls `close`,
    which says the goodbye that is still owed and gives everything back.

    Attributes:
        tap: called for each frame that comes in or is handed to the transport, in order.
        last_received_s: the clock when the last frame arrived.
        bytes_in, bytes_out: the sizes of all frames, without the transport's own framing.
        frames_in, frames_out: how many they were.
    """

    tap: Tap | None
    last_received_s: float
    bytes_in: int
    bytes_out: int
    frames_in: int
    frames_out: int

    @property
    def is_closed(self) -> bool:
        """Whether frames sent now would be dropped."""

    @property
    def queued_bytes(self) -> int:
        """The memory held by what was sent and is not yet handed to the transport."""

    async def recv(self) -> bytes:
        """The next message, not checked to be UTF-8. Cancelling it loses nothing.

        Raises:
            LinkClosed: the link has ended; `close_code` and the message say how.
            ProtocolError: the peer sent a binary frame. The link stays open.
        """

    def send(self, frames: Sequence[bytes], position: int = 0) -> None:
        """Queue text messages, to leave in order once the gate's `durable >= position`.

        Never blocks and never raises: a link that has ended drops them, and one whose peer leaves
        more than the queue's limit unread ends, with 1013. The link keeps `frames` as they are.
        """

    def drop(self, is_refused: Callable[[int], bool]) -> None:
        """Forget what waits at refused positions: their records were fenced off."""

    async def wait_drained(self) -> None:
        """Wait until at most `DRAINED_BYTES` wait (half of the queue's limit, if that is less), or
        the link has closed. For senders of much, like a replay; live events never wait."""

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Flush what is due, say goodbye and release everything, within the close timeout.

        What the gate still holds back is dropped. Where the link has ended already, its own code
        and reason stand. Calls after the first wait for it; cancelling the first cuts the link.
        """

    def abort(self) -> None:
        """Cut the channel at once, as a crash would: no flush, no goodbye."""
