"""`ws-append`: the long-lived Response. A client's call suspends the loop on a future."""

from __future__ import annotations

from agentloop.loop.design import Design

WS_APPEND = Design(name="ws-append", parks=True, says_done=True, final="hold")
