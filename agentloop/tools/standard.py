"""The tools of a coding agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.tools.api import Toolbox
from agentloop.tools.apply_patch import ApplyPatch
from agentloop.tools.read_file import ReadFile
from agentloop.tools.shell import Shell
from agentloop.tools.web_search import WebSearch

if TYPE_CHECKING:
    from pathlib import Path

    from agentloop.clock import Clock


def standard_toolbox(workspace: Path, clock: Clock) -> Toolbox:
    """Shell, reading, patching and searching, all in `workspace`."""
    return Toolbox(
        [
            Shell(workspace, clock),
            ReadFile(workspace),
            ApplyPatch(workspace),
            WebSearch(is_threaded=not clock.is_virtual),
        ]
    )
