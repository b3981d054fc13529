"""The standard streams, which may be closed, full, or no longer read by anybody."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from agentloop.tools.text import bounded, clean

COMPLAINT_CHARS_MAX = 1_000


def open_missing() -> None:
    """Put /dev/null where a standard stream is closed: the next file would get its number, and
    be taken for it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open as long as we run


def complain(message: str) -> None:
    """One line on standard error, whatever the message holds; where it can't be said, silence."""
    line = " ".join(bounded(clean(message), COMPLAINT_CHARS_MAX).split())
    with suppress(OSError):
        print(f"agentloop: {line}", file=sys.stderr, flush=True)


def let_go() -> None:
    """Write what is still held back; where that fails, forget it: the interpreter would try it
    again at exit, and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
