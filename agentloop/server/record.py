"""`--record`: every frame as a JSON line, as the server sees it."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Raw, Struct

from agentloop.clock import Clock
from agentloop.errors import ConfigError
from agentloop.link.api import Tap
from agentloop.wire import codec

log = logging.getLogger(__name__)


class RecordedFrame(Struct):
    """A line. `t_s` counts from the recorder's start; a frame that is not JSON is kept as text."""

    t_s: float
    link: int
    dir: Literal["in", "out"]
    bytes: int
    frame: Raw


class Recorder:
    """Writes lines to one file, anew; each is flushed, so a running session can be read along.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise ConfigError(f"cannot record to {path}: {error.strerror}") from error
        self._path = path
        self._clock = clock
        self._started_s = clock.now()
        self._links = 0
        self._is_broken = False

    def tap(self) -> Tap:
        """The tap of one more link."""
        self._links += 1
        link = self._links

        def write(direction: Literal["in", "out"], frame: bytes) -> None:
            t_s = self._clock.now() - self._started_s
            line = RecordedFrame(t_s, link, direction, len(frame), _as_json(frame))
            self._write(codec.encode(line) + b"\n")

        return write

    def _write(self, line: bytes) -> None:
        """A full disk ends the recording, never the session."""
        if self._is_broken:
            return
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            self._is_broken = True
            log.error("recording to %s stopped: %s", self._path, error.strerror)

    def close(self) -> None:
        """Close the file; what a full disk did not take is lost."""
        with suppress(OSError):
            self._file.close()


def _as_json(frame: bytes) -> Raw:
    """The frame where it is JSON on one line, else its text as a JSON string."""
    if codec.is_json(frame) and b"\n" not in frame:
        return Raw(frame)
    return Raw(codec.encode(frame.decode(errors="replace")))
