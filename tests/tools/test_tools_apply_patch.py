"""Patches on real files: all or nothing, inside the workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentloop.errors import ToolFailed
from agentloop.tools.apply_patch import ApplyPatch


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("one\ntwo\n")
    (folder / "b.txt").write_text("three\n")
    (folder / "run.sh").write_text("echo\n")
    (folder / "run.sh").chmod(0o755)
    (tmp_path / "outside.txt").write_text("outside\n")
    (folder / "link-out").symlink_to(tmp_path / "outside.txt")
    (folder / "folder-out").symlink_to(tmp_path)
    (folder / "link-in").symlink_to("a.txt")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "-out" not in path.as_posix()
    }


async def apply(workspace: Path, *lines: str) -> str:
    patch = "\n".join(("*** Begin Patch", *lines, "*** End Patch"))
    return await ApplyPatch(workspace).run({"patch": patch})


async def test_all_changes_are_made_and_listed(workspace: Path) -> None:
    output = await apply(
        workspace,
        "*** Update File: a.txt", "@@", "-two", "+2",
        "*** Add File: deep/er/new.txt", "+new",
        "*** Delete File: b.txt",
        "*** Update File: run.sh", "*** Move to: sub/moved.sh", "@@", "-echo", "+exit",
    )  # fmt: skip
    changed = ["A deep/er/new.txt", "A sub/moved.sh", "D b.txt", "D run.sh", "M a.txt"]
    assert output.split("\n") == ["done:", *changed]
    assert contents(workspace) == {
        "a.txt": b"one\n2\n",
        "link-in": b"one\n2\n",
        "deep/er/new.txt": b"new\n",
        "sub/moved.sh": b"exit\n",
    }


async def test_modes_stay_and_new_files_follow_the_umask(workspace: Path) -> None:
    umask = os.umask(0o027)
    try:
        await apply(
            workspace,
            "*** Update File: run.sh", "@@", "-echo", "+exit",
            "*** Add File: new", "+x",
        )  # fmt: skip
    finally:
        os.umask(umask)
    assert (workspace / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (workspace / "new").stat().st_mode & 0o777 == 0o640


async def test_later_changes_see_earlier_ones(workspace: Path) -> None:
    output = await apply(
        workspace,
        "*** Update File: a.txt", "@@", "-two", "+2",
        "*** Update File: a.txt", "@@", "-2", "+zwei",
        "*** Delete File: b.txt",
        "*** Add File: b.txt", "+again",
        "*** Add File: passing", "+x",
        "*** Delete File: passing",
    )  # fmt: skip
    assert output == "done:\nM a.txt\nM b.txt"
    assert (workspace / "a.txt").read_text() == "one\nzwei\n"
    assert (workspace / "b.txt").read_text() == "again\n"
    assert not (workspace / "passing").exists()


async def test_a_link_inside_leads_to_its_file(workspace: Path) -> None:
    assert (
        await apply(workspace, "*** Update File: link-in", "@@", "-two", "+2") == "done:\nM a.txt"
    )
    assert (workspace / "link-in").is_symlink()
    assert (workspace / "a.txt").read_text() == "one\n2\n"


async def test_bytes_that_are_not_text_pass_unharmed(workspace: Path) -> None:
    (workspace / "latin").write_bytes(b"caf\xe9\nold\n")
    await apply(workspace, "*** Update File: latin", "@@", "-old", "+new")
    assert (workspace / "latin").read_bytes() == b"caf\xe9\nnew\n"


IMPOSSIBLE = {
    "a later hunk does not match": (
        ["*** Update File: b.txt", "@@", "-no", "+x"],
        "b.txt: .*'-no'",
    ),
    "update of a missing file": (["*** Update File: no.txt", "@@", "-x", "+y"], "no.txt"),
    "deletion of a missing file": (["*** Delete File: no.txt"], "no.txt"),
    "deletion of a folder": (["*** Delete File: sub"], "sub is a directory"),
    "addition of what exists": (["*** Add File: b.txt", "+x"], "b.txt exists already"),
    "addition of a folder": (["*** Add File: sub", "+x"], "sub exists already"),
    "move onto what exists": (["*** Update File: b.txt", "*** Move to: a.txt"], "a.txt exists"),
    "use after deletion": (
        ["*** Delete File: b.txt", "*** Update File: b.txt", "@@", "-three", "+3"],
        "b.txt was deleted",
    ),
    "above the workspace": (["*** Update File: ../outside.txt", "@@", "-outside", "+x"], "outside"),
    "absolute": (["*** Add File: /tmp/x", "+x"], "outside the workspace"),
    "through a link": (["*** Update File: link-out", "@@", "-outside", "+x"], "outside the work"),
    "through a linked folder": (["*** Add File: folder-out/x", "+x"], "outside the workspace"),
    "moved outside": (["*** Update File: b.txt", "*** Move to: ../b.txt"], "outside the workspace"),
    "deletion of a link": (["*** Delete File: link-in"], "symbolic link"),
    "a file as a folder": (["*** Add File: b.txt/x", "+x"], "changed: nothing"),
}


@pytest.mark.parametrize(("lines", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
async def test_nothing_changes_where_one_part_is_impossible(
    workspace: Path, lines: list[str], message: str
) -> None:
    before = contents(workspace.parent)
    with pytest.raises(ToolFailed, match=message):
        await apply(
            workspace,
            "*** Update File: a.txt", "@@", "-two", "+2",
            "*** Delete File: run.sh",
            *lines,
        )  # fmt: skip
    assert contents(workspace.parent) == before


async def test_a_refusing_file_system_leaves_no_temporary_files(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(f"{target} may not be replaced")

    before = contents(workspace)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ToolFailed, match="may not be replaced; changed: nothing"):
        await apply(
            workspace, "*** Update File: a.txt", "@@", "-two", "+2", "*** Delete File: b.txt"
        )
    assert contents(workspace) == before
