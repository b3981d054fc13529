"""The designs that a client can speak, by name. A new one is a file and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.drive.append import AppendDrive
from agentloop.drive.hosted import HostedDrive

if TYPE_CHECKING:
    from agentloop.drive.api import Drive

DRIVES: dict[str, type[Drive]] = {drive.name: drive for drive in (AppendDrive, HostedDrive)}
