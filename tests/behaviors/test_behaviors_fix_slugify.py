"""The bundled session mends the bundled task with real tools, call by call."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import agentloop
from agentloop.behaviors.files import BUNDLED, load_script
from agentloop.clock import WallClock
from agentloop.tokens.render import WEB_SEARCH
from agentloop.tools.api import Toolbox
from agentloop.tools.apply_patch import ApplyPatch
from agentloop.tools.read_file import ReadFile
from agentloop.tools.shell import Shell
from tests.behaviors.behavior_kit import heard, ids_of, turn_of

TASK = Path(agentloop.__file__).parent / "agent/task"
SCRIPT = load_script(BUNDLED / "fix-slugify.json")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TASK, tmp_path / "task"))


async def test_it_goes_from_two_failures_to_none(workspace: Path) -> None:
    box = Toolbox([Shell(workspace, WallClock()), ReadFile(workspace), ApplyPatch(workspace)])
    outputs: list[list[str]] = []
    for number in range(6):
        said = heard(SCRIPT.plan(turn_of(number)))
        calls = [(name, text) for kind, name, text in said if kind == "function_call"]
        outputs.append([await box.call(name, text) for name, text in calls if name != WEB_SEARCH])
    looked, failed, searched, patched, passed, ended = outputs
    assert "test_core.py" in looked[0]
    assert "def slugify" in looked[1]
    assert failed[0].startswith("exit code: 1\n")
    assert "Ran 8 tests" in failed[0]
    assert "FAILED (failures=2)" in failed[0]
    assert patched == ["done:\nM slugify_lite/core.py"]
    assert passed[0].startswith("exit code: 0\n")
    assert "['fine-cafe', 'abc-1-2', '']" in passed[0]
    assert searched == ended == []


def test_its_turns_are_as_planned() -> None:
    names = [[name for _, name, _ in heard(SCRIPT.plan(turn_of(number)))] for number in range(6)]
    assert names == [
        ["", "", "shell", "read_file"],
        ["", "", "shell"],
        ["", "web_search"],
        ["", "", "apply_patch"],
        ["", "shell"],
        ["", ""],
    ]
    counts = [len(ids_of(SCRIPT.plan(turn_of(number)))) for number in range(6)]
    assert all(150 <= count <= 600 for count in counts)
