"""`python -m agentloop` is the command `agentloop`."""

from __future__ import annotations

import sys

from agentloop.cli import main

if __name__ == "__main__":
    sys.exit(main())
