"""A create that waits for its lane, with the frames that belong to it."""

from __future__ import annotations

from msgspec import Struct

from agentloop.errors import LimitExceeded
from agentloop.loop.live_response import Admitted
from agentloop.wire.requests import Append, Close

FRAMES_MAX = 64


class Received(Struct, frozen=True):
    """When a frame came and how large it was."""

    at_s: float
    byte_count: int


class WaitingCreate(Struct):
    """A create, and what came for it before it could start: `byte_count` in all."""

    admitted: Admitted
    received: Received
    frames: list[tuple[Append | Close, Received]] = []
    byte_count: int = 0

    def __post_init__(self) -> None:
        self.byte_count = self.received.byte_count

    def keep(self, message: Append | Close, received: Received) -> None:
        """A frame for it came.

        Raises:
            LimitExceeded: `too_many_queued`, no more frames are kept.
        """
        if len(self.frames) >= FRAMES_MAX:
            raise LimitExceeded(
                f"a waiting create keeps at most {FRAMES_MAX} frames; send more after its"
                " `response.created`",
                code="too_many_queued",
            )
        self.frames.append((message, received))
        self.byte_count += received.byte_count
