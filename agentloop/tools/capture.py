"""A running program's output, in bounded memory."""

from __future__ import annotations

import asyncio
import codecs
import os
from typing import TYPE_CHECKING, Self

from agentloop.tools.text import joined

if TYPE_CHECKING:
    from types import TracebackType

_READ_BYTES = 64 * 1024
_FINAL_READS_MAX = 64  # more than a pipe can hold, so a writer that escaped cannot keep us reading
_CONTINUATIONS = bytes(range(0x80, 0xC0))


class HeadTail:
    """The first and the last bytes of a stream, half of `bytes_max` each."""

    def __init__(self, bytes_max: int) -> None:
        self._half = bytes_max // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        self._total += len(data)
        del self._tail[: max(len(self._tail) - self._half, 0)]

    def text(self) -> str:
        """What was kept, invalid UTF-8 replaced, with a marker that names the bytes cut."""
        cut = self._total - len(self._head) - len(self._tail)
        if not cut:
            return (self._head + self._tail).decode(errors="replace")
        # A character split by the cut is dropped, not shown as broken.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        tail = self._tail.lstrip(_CONTINUATIONS).decode(errors="replace")
        return joined(head, f"{cut} bytes", tail)


class Capture:
    """A pipe that the event loop drains while programs write to `write_fd`.

    Its end does not wait for end-of-file, which a program in the background could hold back for
    ever: what is in the pipe when the context ends is the last of it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._kept = HeadTail(bytes_max)
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._loop.add_reader(self._read_fd, self._read)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.remove_reader(self._read_fd)
        for _ in range(_FINAL_READS_MAX):
            if not self._read():
                break
        os.close(self._read_fd)
        os.close(self.write_fd)

    def text(self) -> str:
        """The output so far."""
        return self._kept.text()

    def _read(self) -> bool:
        try:
            data = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self._kept.write(data)
        return True
