"""The command line."""

from __future__ import annotations

from agentloop.cli.main import main

__all__ = ["main"]
