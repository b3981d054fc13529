"""The rules of the append protocol, played against every link in virtual time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentloop.clock import run_virtual
from tests.conformance.runner import Stage, play
from tests.conformance.stages import in_memory, on_websockets

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
STAGES = {"memory": in_memory, "websocket": on_websockets}
PLAYS = [
    pytest.param(path, stage, id=f"{path.stem}-{name}")
    for path in TRANSCRIPTS
    for name, stage in STAGES.items()
    if name == "websocket" or "(binary)" not in path.read_text()  # memory links have no such frame
]


@pytest.mark.parametrize(("path", "stage"), PLAYS)
def test_rule_holds(path: Path, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    run_virtual(lambda clock: play(path.read_text(), stage, clock))
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, f"the server logged {errors[0].getMessage()}\n{errors[0].exc_text}"
