"""`hosted`: the bound. One request; the server's own table of tools runs every call.

The table is given to the server's constructor; no request can choose what runs.
"""

from __future__ import annotations

from agentloop.admission.admit import admit_result
from agentloop.core.calls import Call
from agentloop.core.context import Entry
from agentloop.loop.design import Design
from agentloop.tools.api import Toolbox

HOSTED = Design(name="hosted", parks=True, says_done=True, final="complete", runs_functions=True)


class TableTools:
    """The server's tools behind the loop's seam."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    def __contains__(self, name: str) -> bool:
        return name in self._toolbox

    async def answer(self, call: Call) -> Entry:
        """Run the tool and render what it says; the toolbox turns failures into text."""
        return admit_result(call, await self._toolbox.call(call.name, call.arguments))
