"""Applying a patch to the workspace: all of it, or nothing."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from agentloop.errors import ToolFailed
from agentloop.ids import IdSource
from agentloop.tools.api import Arguments, Durability, define
from agentloop.tools.patch import AddFile, DeleteFile, FileChange, UpdateFile, apply_hunks, parse
from agentloop.tools.workspace import read_bounded, resolve_inside

if TYPE_CHECKING:
    from pathlib import Path

_DESCRIPTION = """Change files of the workspace with a patch; all hunks apply, or nothing changes:
*** Begin Patch
*** Update File: path
@@ def function_above_the_change():
 context
-old line
+new line
*** Add File: path
+line
*** Delete File: path
*** End Patch
`*** Move to: path` below an update renames the file. Give about three lines of context."""

_Patch = Annotated[str, Meta(description="From '*** Begin Patch' to '*** End Patch'.")]


class ApplyPatchArguments(Arguments, frozen=True):
    patch: _Patch


class ApplyPatch:
    """Answers with the changed files, one a line: `A`, `M` or `D` and the path."""

    name = "apply_patch"
    kind: Durability = "once"
    definition = define(name, _DESCRIPTION, ApplyPatchArguments)

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace

    async def run(self, arguments: dict[str, object]) -> str:
        changes = parse(ApplyPatchArguments.read(arguments).patch)
        stage = _Stage(self._workspace)
        for change in changes:
            stage.take(change)
        return "\n".join(["done:", *stage.commit()])


class _File(Struct):
    """A file after the patch. `content` is None where it is gone, `mode` where it is new."""

    content: bytes | None
    mode: int | None


class _Stage:
    """The files as they will be. Nothing is written before `commit`."""

    def __init__(self, workspace: Path) -> None:
        self._root = workspace.resolve()
        self._files: dict[Path, _File] = {}
        self._ids = IdSource()

    def take(self, change: FileChange) -> None:
        """Stage one change on top of the earlier ones."""
        match change:
            case AddFile(path=path, text=text):
                self._create(path, _File(text.encode(), None))
            case DeleteFile(path=path):
                self._remove(path)
            case UpdateFile():
                self._update(change)

    def _update(self, change: UpdateFile) -> None:
        file = self._read(change.path)
        assert file.content is not None, "_read gives only files that are there"
        # Bytes that are not UTF-8 pass through unharmed.
        text = file.content.decode(errors="surrogateescape")
        patched = apply_hunks(change.path, text, change.hunks)
        after = _File(patched.encode(errors="surrogateescape"), file.mode)
        if change.move_to is None:
            self._files[resolve_inside(self._root, change.path)] = after
        else:
            self._remove(change.path)
            self._create(change.move_to, after)

    def _read(self, name: str) -> _File:
        path = resolve_inside(self._root, name)
        if path not in self._files:
            content = read_bounded(path, name)
            return _File(content, stat.S_IMODE(path.stat().st_mode))
        file = self._files[path]
        if file.content is None:
            raise ToolFailed(f"{name} was deleted or moved earlier in the patch")
        return file

    def _create(self, name: str, file: _File) -> None:
        path = resolve_inside(self._root, name)
        staged = self._files.get(path)
        if path.exists() if staged is None else staged.content is not None:
            raise ToolFailed(f"{name} exists already; use '*** Update File' or delete it first")
        self._files[path] = file

    def _remove(self, name: str) -> None:
        if (self._root / name).is_symlink():
            raise ToolFailed(f"{name} is a symbolic link; remove it with the shell")
        self._files[resolve_inside(self._root, name)] = _File(None, self._read(name).mode)

    def commit(self) -> list[str]:
        """Write everything, each file in one step. Returns what changed: `A|M|D path`.

        Raises:
            ToolFailed: the file system refused; the message names what it had already taken.
        """
        summary = sorted(self._summary())
        temporaries: dict[Path, Path] = {}
        replaced: list[str] = []
        try:
            for path, file in self._files.items():
                if file.content is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    temporaries[path] = path.with_name(self._ids.draw(".patch"))
                    _write(temporaries[path], file.content, file.mode)
            for path, temporary in temporaries.items():
                os.replace(temporary, path)
                replaced.append(self._name(path))
            for path, file in self._files.items():
                if file.content is None:
                    path.unlink(missing_ok=True)
        except OSError as error:
            done = ", ".join(replaced) or "nothing"
            raise ToolFailed(f"the patch could not be written: {error}; changed: {done}") from error
        finally:
            for temporary in temporaries.values():
                temporary.unlink(missing_ok=True)
        return summary

    def _summary(self) -> list[str]:
        """The net change of each file, seen before the commit."""
        marks = {(False, True): "A", (True, True): "M", (True, False): "D"}
        return [
            f"{mark} {self._name(path)}"
            for path, file in self._files.items()
            if (mark := marks.get((path.exists(), file.content is not None)))
        ]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()


def _write(path: Path, content: bytes, mode: int | None) -> None:
    path.write_bytes(content)
    if mode is not None:
        path.chmod(mode)
