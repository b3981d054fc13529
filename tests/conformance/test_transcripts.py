"""The rules of the append protocol, played against every link in virtual time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentloop.clock import run_virtual
from tests.conformance.runner import Stage, play
from tests.conformance.stages import in_memory, on_websockets

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("stage", [in_memory, on_websockets], ids=["memory", "websocket"])
@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_rule_holds(path: Path, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    text = path.read_text()
    if "(binary)" in text and stage is in_memory:
        pytest.skip("a memory link has no binary frames")
    run_virtual(lambda clock: play(text, stage, clock))
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, f"the server logged {errors[0].getMessage()}\n{errors[0].exc_text}"
