"""Script files: found by a plain name only, and refused with file, field and reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentloop.behaviors.files import BUNDLED, find, load_script
from agentloop.errors import ConfigError
from tests.behaviors.behavior_kit import heard, turn_of


def test_the_first_directory_wins(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "both.json").touch()
    (folders[1] / "only.traj").touch()
    assert find("both", folders, (".json",)) == folders[0] / "both.json"
    assert find("only", folders, (".json", ".traj")) == folders[1] / "only.traj"
    assert find("only", folders, (".json",)) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../secret", "a/../../secret", "/etc/passwd", ".hidden", "a\0b", "a\n"]
)
def test_a_name_is_only_a_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.json").touch()
    (tmp_path / ".hidden.json").touch()
    folder = tmp_path / "scripts"
    (folder / "a").mkdir(parents=True)
    assert find(name, [folder, tmp_path], (".json", "")) is None


def test_a_script_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "hi.json"
    path.write_text('{"description": "greets", "turns": [[{"text": "hi"}]]}')
    assert heard(load_script(path).plan(turn_of())) == [("message", "", "hi")]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b'{"turns": [[{"text": "\xff"}]]}', "script: Invalid UTF-8"),
        (b'{"turn": []}', "unknown field `turn`"),
        (b"{}", "missing required field `turns`"),
        (b'{"turns": [[{"text": 1}]]}', "script.turns[0][0].text: Expected `str"),
        (b'{"turns": [[{"texts": "a"}]]}', "turns[0][0]: Object contains unknown field `texts`"),
        (b'{"turns": [[{"text": "a"}], [{"stall_ms": 2}]]}', "script.turns[1]: a turn must hold"),
        (b'{"turns": [[{"call": {"arguments": {}}}]]}', "turns[0][0].call"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        load_script(path)
    assert refusal.value.message.startswith(str(path))
    assert told in refusal.value.message


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.json cannot be read: No such file"):
        load_script(tmp_path / "gone.json")


@pytest.mark.parametrize("path", sorted(BUNDLED.iterdir()), ids=lambda path: path.name)
def test_bundled_scripts_can_be_said(path: Path) -> None:
    assert heard(load_script(path).plan(turn_of()))
