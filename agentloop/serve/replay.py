"""What a Response has said, made again from its records, a piece at a time: a long history holds up
neither the event loop nor the link."""

from __future__ import annotations

from collections.abc import Iterator

from agentloop.core.fold import Fold
from agentloop.errors import UnknownResponse
from agentloop.journal.api import Journal
from agentloop.loop.live_response import LiveResponse

PIECE_BYTES = 64 * 1024  # about a millisecond of work
_RECORDS_READ = 64


def pieces(live: LiveResponse, journal: Journal, starting_after: int) -> Iterator[list[bytes]]:
    """The events after a number, in pieces of little more than `PIECE_BYTES`. What is said while
    this goes on is in a later piece: at the end nothing is left that was said.

    Raises:
        UnknownResponse: the Response was forgotten meanwhile.
    """
    fold = Fold(live.response.config, live.response.parent)
    said = live.response.transcript
    piece: list[bytes] = []
    read_count = piece_bytes = 0
    while True:
        while fold.transcript.next_seq < said.next_seq:
            records = journal.read(live.response.id, read_count, _RECORDS_READ)
            if not records:
                raise UnknownResponse(f"Response {live.response.id} is gone", param="response_id")
            read_count += len(records)
            for record in records:
                known_count = max(0, starting_after + 1 - record.first_seq)
                frames = fold.repeat(record)[known_count:]
                piece += frames
                piece_bytes += sum(map(len, frames))
                if piece_bytes >= PIECE_BYTES:
                    yield piece
                    piece, piece_bytes = [], 0
        if not piece:
            return
        yield piece
        piece, piece_bytes = [], 0
