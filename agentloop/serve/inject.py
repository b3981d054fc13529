"""`ws-inject`: the long-lived Response in the words of `response.inject`.

Its clients take the `output_item.done` of a call for the sign that it is their turn, so no
`response.done` is said; they end with the Response, so a turn without calls completes it; and they
show only what the root agent says last.
"""

from __future__ import annotations

from agentloop.loop.design import Design

WS_INJECT = Design(
    name="ws-inject",
    parks=True,
    says_done=False,
    final="complete",
    is_final_fixed=True,
    agent_name="/root",
)
