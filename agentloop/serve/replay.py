"""What a Response has said, said again on one lane a piece at a time: a long history holds up
neither the event loop nor the link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from agentloop.core.fold import Fold
from agentloop.errors import AgentLoopError, UnknownResponse
from agentloop.journal.api import Journal
from agentloop.link.api import DRAINED_BYTES, Link
from agentloop.loop.live_response import LiveResponse
from agentloop.serve.faults import as_fault

PIECE_BYTES = 64 * 1024  # about a millisecond of work
_RECORDS_READ = 64

Say = Callable[[Sequence[bytes], int], None]  # frames, and the position that they wait for
OnEnd = Callable[[AgentLoopError | None], None]


class Replay:
    """One lane catching up with a Response.

    Args:
        pieces: what is to be said; see `pieces`.
        on_end: called once, unless it is stopped: all was said, or why that cannot be.
    """

    def __init__(
        self, live: LiveResponse, pieces: Iterator[list[bytes]], link: Link, say: Say, on_end: OnEnd
    ) -> None:
        self._live = live
        self._pieces = pieces
        self._link = link
        self._say = say
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """The first piece at once where the link has room for it, which mostly is all; the others
        as the client takes them."""
        if self._link.queued_bytes > DRAINED_BYTES or self._say_piece():
            self._task = group.create_task(self._go_on())

    def stop(self) -> None:
        """Say no more."""
        if self._task is not None:
            self._task.cancel()

    async def _go_on(self) -> None:
        is_unfinished = True
        while is_unfinished:
            await asyncio.sleep(0)
            await self._link.wait_drained()
            is_unfinished = self._say_piece()

    def _say_piece(self) -> bool:
        """Say the next piece. Returns whether there may be more."""
        try:
            piece = next(self._pieces, None)
        except Exception as error:
            self._on_end(as_fault(error))
            return False
        if piece is None:
            self._on_end(None)
            return False
        self._say(piece, self._live.position)
        return True


def pieces(live: LiveResponse, journal: Journal, starting_after: int) -> Iterator[list[bytes]]:
    """The events after a number, in pieces that take about as long to make as `PIECE_BYTES` of
    them; one of what is left out is empty. What is said while this goes on is in a later piece: at
    the end nothing is left that was said.

    Raises:
        UnknownResponse: the Response was forgotten meanwhile.
    """
    fold = Fold(live.response.config, live.response.parent)
    said = live.response.transcript
    piece: list[bytes] = []
    read_count = made_bytes = 0
    while True:
        while fold.transcript.next_seq < said.next_seq:
            records = journal.read(live.response.id, read_count, _RECORDS_READ)
            if not records:
                raise UnknownResponse(f"Response {live.response.id} is gone", param="response_id")
            read_count += len(records)
            for record in records:
                made = fold.repeat(record)
                made_bytes += sum(map(len, made))
                piece += made[max(0, starting_after + 1 - record.first_seq) :]
                if made_bytes >= PIECE_BYTES:
                    yield piece
                    piece, made_bytes = [], 0
        if not piece:
            return
        yield piece
        piece, made_bytes = [], 0
