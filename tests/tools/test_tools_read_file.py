"""Reading: numbered lines, in bounds, inside the workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentloop.errors import ToolFailed
from agentloop.tools.read_file import ReadFile
from agentloop.tools.workspace import FILE_BYTES_MAX, resolve_inside


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "five.txt").write_text("one\ntwo\r\nthree\nfour\nfive")
    (tmp_path / "secret").write_text("outside")
    (folder / "link-out").symlink_to(tmp_path / "secret")
    (folder / "folder-out").symlink_to(tmp_path)
    (folder / "link-in").symlink_to("five.txt")
    (folder / "loop").symlink_to("loop")
    return folder


async def test_lines_are_numbered(workspace: Path) -> None:
    output = await ReadFile(workspace).run({"path": "five.txt"})
    assert output == "     1\tone\n     2\ttwo\n     3\tthree\n     4\tfour\n     5\tfive"


async def test_a_part_says_where_to_go_on(workspace: Path) -> None:
    tool = ReadFile(workspace)
    part = await tool.run({"path": "five.txt", "offset_lines": 1, "limit_lines": 2})
    assert part == "     2\ttwo\n     3\tthree\n[2 more lines; go on with offset_lines=3]"
    rest = await tool.run({"path": "five.txt", "offset_lines": 3})
    assert rest == "     4\tfour\n     5\tfive"


async def test_a_large_file_comes_in_parts_that_miss_nothing(workspace: Path) -> None:
    lines = [f"line {number} {'x' * 50}" for number in range(3_000)]
    (workspace / "large").write_text("\n".join(lines) + "\n")
    seen: list[str] = []
    while len(seen) < len(lines):
        output = await ReadFile(workspace).run({"path": "large", "offset_lines": len(seen)})
        assert len(output) < 40_000
        seen += [line.split("\t")[1] for line in output.split("\n") if "\t" in line]
    assert seen == lines


async def test_a_long_line_is_shortened(workspace: Path) -> None:
    (workspace / "long").write_text("x" * 5_000)
    output = await ReadFile(workspace).run({"path": "long"})
    assert output == f"     1\t{'x' * 2_000} [... 3000 characters cut]"


async def test_odd_content(workspace: Path) -> None:
    (workspace / "empty").touch()
    (workspace / "latin").write_bytes(b"caf\xe9\n")
    assert await ReadFile(workspace).run({"path": "empty"}) == "[empty is empty]"
    assert await ReadFile(workspace).run({"path": "latin"}) == "     1\tcaf\ufffd"


async def test_paths_inside_may_be_absolute_or_linked(workspace: Path) -> None:
    for path in (str(workspace / "five.txt"), "link-in", "./x/../five.txt"):
        assert "five" in await ReadFile(workspace).run({"path": path})


@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc/passwd", "link-out", "folder-out/secret", "x/../../secret", "..", "loop",
     "a\0b", "x" * 5_000],
)  # fmt: skip
async def test_paths_that_lead_elsewhere_are_refused(workspace: Path, path: str) -> None:
    with pytest.raises(ToolFailed) as failure:
        await ReadFile(workspace).run({"path": path})
    assert "outside\n" not in failure.value.message
    assert repr(path) in failure.value.message or path in failure.value.message


def test_a_neighbour_whose_name_starts_the_same_is_outside(workspace: Path) -> None:
    (workspace.parent / "workspace-2").mkdir()
    with pytest.raises(ToolFailed, match="outside"):
        resolve_inside(workspace, "../workspace-2/x")


def test_the_workspace_itself_may_be_a_link(workspace: Path) -> None:
    link = workspace.parent / "link"
    link.symlink_to(workspace)
    assert resolve_inside(link, "five.txt") == workspace / "five.txt"
    assert resolve_inside(link, str(link / "five.txt")) == workspace / "five.txt"


async def test_what_is_no_text_file_is_refused(workspace: Path) -> None:
    (workspace / "binary").write_bytes(b"ELF\0\1")
    (workspace / "folder").mkdir()
    os.mkfifo(workspace / "fifo")
    with (workspace / "huge").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    wrong = {
        "binary": "is binary", "folder": "is a directory", "fifo": "not a regular file",
        "huge": "use the shell", "missing": "No such file",
    }  # fmt: skip
    for path, message in wrong.items():
        with pytest.raises(ToolFailed, match=message):
            await ReadFile(workspace).run({"path": path})


async def test_an_offset_past_the_end_names_the_length(workspace: Path) -> None:
    with pytest.raises(ToolFailed, match="has 5 lines"):
        await ReadFile(workspace).run({"path": "five.txt", "offset_lines": 5})
