"""Process groups: signalling all members, and seeing whether one still runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ENDED = "ZX"  # the states of proc(5) in which a process is only waiting to be collected


def signal_group(group: int, signal_number: int) -> bool:
    """Signal every member; whether there is one that is ours to signal."""
    try:
        os.killpg(group, signal_number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_group_running(group: int) -> bool:
    """Whether a member still runs.

    Members that have ended stay members until their parent collects them, which in a container
    without an init process is never; where there is a `/proc`, they don't count.
    """
    if not signal_group(group, 0):
        return False
    states = set(_states(group))
    return not states or not states <= set(_ENDED)


def _states(group: int) -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name before it, in parentheses, may hold anything.
            state, _parent, its_group, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(its_group) == group:
            yield state
