"""Paths that a model names: inside the workspace, or refused."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from agentloop.errors import ToolFailed

if TYPE_CHECKING:
    from pathlib import Path

FILE_BYTES_MAX = 4 * 1024 * 1024


def resolve_inside(workspace: Path, path: str) -> Path:
    """The real path of `path`, which is relative to the workspace or absolute within it.

    Raises:
        ToolFailed: it leads outside, through `..`, a symbolic link or otherwise.
    """
    root = workspace.resolve()
    try:
        resolved = (root / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ToolFailed(f"path {path!r} cannot be resolved: {error}") from error
    if not resolved.is_relative_to(root):
        raise ToolFailed(f"path {path!r} is outside the workspace; use a path below {root}")
    return resolved


def read_bounded(path: Path, name: str) -> bytes:
    """The content of a regular file; `name` is what the model calls it.

    Raises:
        ToolFailed: it is missing, not a regular file, unreadable, or above 4 MiB.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ToolFailed(f"{name} is a directory; list it with the shell")
        if not stat.S_ISREG(status.st_mode):
            raise ToolFailed(f"{name} is not a regular file")
        if status.st_size > FILE_BYTES_MAX:
            raise ToolFailed(
                f"{name} has {status.st_size} bytes, more than {FILE_BYTES_MAX}; "
                "use the shell on the part you need"
            )
        return path.read_bytes()
    except OSError as error:
        raise ToolFailed(f"{name} cannot be read: {error.strerror}") from error
