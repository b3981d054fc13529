"""The diagram in the notes is the one that the transition table draws.

`AGENTLOOP_UPDATE=1 python -m pytest tests/core/test_core_states.py` writes it anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from agentloop.core.states import diagram

NOTE = Path(__file__).parents[2] / "notes/states.md"
TEXT = """\
# The states of a Response

A Response is *suspended* while calls wait for the client's outputs and *idle* while it is open and
nothing is pending; it ends in exactly one of the four terminal states. Each arrow names the kinds
of records that may take it, drawn from the table in `agentloop/core/states.py`.

```mermaid
{diagram}```
"""


def test_diagram_in_the_notes_is_the_tables() -> None:
    expected = TEXT.format(diagram=diagram())
    if os.environ.get("AGENTLOOP_UPDATE"):
        NOTE.write_text(expected)
    assert NOTE.is_file(), f"write it: {__doc__}"
    assert NOTE.read_text() == expected, f"write it anew: {__doc__}"
