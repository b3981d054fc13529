"""The patch format that coding models write, and how its hunks apply to a text. Pure.

    *** Begin Patch
    *** Add File: path            every line starts with "+"
    *** Delete File: path
    *** Update File: path
    *** Move to: path             optional, directly below the update
    @@ a line above the hunk      optional, several narrow the place down
     context
    -old
    +new
    *** End of File               optional: the hunk is the end of the file
    *** End Patch

Hunks of a file come in its order. Each is looked for exactly, then without trailing, then without
surrounding whitespace; context lines stay as they are in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from agentloop.errors import ToolFailed

_HEADER = re.compile(r"\*\*\* (Add|Delete|Update) File: (.+)")
_MOVE = "*** Move to: "
_END_OF_FILE = "*** End of File"
_UNIFIED = re.compile(r"-\d+(,\d+)? \+\d+(,\d+)? @@.*")  # line numbers, which models guess

_FORMS: tuple[Callable[[str], str], ...] = (
    lambda line: line.removesuffix("\r"),
    str.rstrip,
    str.strip,
)


class Hunk(Struct):
    """One place of a file. Lines carry their mark: `+`, `-`, or a space; no mark at all is an
    empty context line."""

    anchors: list[str] = []
    lines: list[str] = []
    is_at_end: bool = False

    @property
    def old(self) -> list[str]:
        """The lines that must be in the file."""
        return [line[1:] for line in self.lines if line[:1] != "+"]

    @property
    def title(self) -> str:
        """The hunk's first line, for messages."""
        return self.lines[0] if self.lines else f"@@ {self.anchors[0]}" if self.anchors else "@@"


class AddFile(Struct):
    path: str
    text: str


class DeleteFile(Struct):
    path: str


class UpdateFile(Struct):
    path: str
    move_to: str | None
    hunks: list[Hunk]


FileChange = AddFile | DeleteFile | UpdateFile


def parse(patch: str) -> list[FileChange]:
    """Read a patch.

    Raises:
        ToolFailed: it is not in the format; the message names the line.
    """
    lines = [line.removesuffix("\r") for line in patch.strip().split("\n")]
    if lines[0].strip() != "*** Begin Patch":
        raise ToolFailed(f"the patch must start with '*** Begin Patch', not {lines[0]!r}")
    if lines[-1].strip() != "*** End Patch":
        raise ToolFailed(f"the patch must end with '*** End Patch', not {lines[-1]!r}")
    changes = [_change(*section) for section in _sections(lines[1:-1])]
    if not changes:
        raise ToolFailed("the patch names no file; start with '*** Update File: path'")
    return changes


def _sections(lines: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    kind, path = "", ""
    body: list[str] = []
    for line in lines:
        if header := _HEADER.fullmatch(line.rstrip()):
            if kind:
                yield kind, path, body
            kind, path, body = header[1], header[2], []
        elif kind:
            body.append(line)
        elif line.strip():
            raise ToolFailed(f"expected '*** Add|Delete|Update File: path', not {line!r}")
    if kind:
        yield kind, path, body


def _change(kind: str, path: str, body: list[str]) -> FileChange:
    _drop_empty_tail(body)
    if kind == "Add":
        return AddFile(path, _added_text(path, body))
    if kind == "Update":
        return _update(path, body)
    if body:
        raise ToolFailed(f"{path}: nothing may follow '*** Delete File', but {body[0]!r} does")
    return DeleteFile(path)


def _drop_empty_tail(lines: list[str]) -> None:
    """Lines without a mark at the end only set sections apart."""
    while lines and not lines[-1]:
        lines.pop()


def _added_text(path: str, body: list[str]) -> str:
    for line in body:
        if line and not line.startswith("+"):
            raise ToolFailed(f"{path}: each line of an added file starts with '+', not {line!r}")
    return "".join(f"{line[1:]}\n" for line in body)


def _update(path: str, body: list[str]) -> UpdateFile:
    move_to = None
    if body and body[0].startswith(_MOVE):
        move_to = body.pop(0).removeprefix(_MOVE).strip()
    hunks = _hunks(path, body)
    for hunk in hunks:
        _drop_empty_tail(hunk.lines)
        if not hunk.lines:
            raise ToolFailed(f"{path}: the hunk {hunk.title!r} has no lines")
    if not hunks and move_to is None:
        raise ToolFailed(f"{path}: the update has no hunks; add '@@' and its lines")
    return UpdateFile(path, move_to, hunks)


def _hunks(path: str, body: list[str]) -> list[Hunk]:
    hunks: list[Hunk] = []
    for line in body:
        is_open = bool(hunks) and not hunks[-1].is_at_end
        if line.startswith("@@"):
            if not is_open or hunks[-1].lines:
                hunks.append(Hunk())
            if anchor := _anchor(line):
                hunks[-1].anchors.append(anchor)
        elif line.rstrip() == _END_OF_FILE and is_open:
            hunks[-1].is_at_end = True
        elif line[:1] in ("", " ", "+", "-"):
            if not is_open:
                hunks.append(Hunk())
            hunks[-1].lines.append(line)
        else:
            raise ToolFailed(f"{path}: a line of a hunk starts with ' ', '-' or '+', not {line!r}")
    return hunks


def _anchor(line: str) -> str:
    text = line.removeprefix("@@").strip()
    return "" if text == "@@" or _UNIFIED.fullmatch(text) else text


def apply_hunks(path: str, text: str, hunks: list[Hunk]) -> str:
    """The text after all hunks. The file's line ends stay, also a missing one at its end.

    Raises:
        ToolFailed: a hunk is not found; the message names `path` and the hunk's first line.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    is_unended = bool(text) and not text.endswith("\n")
    lines = (text + newline if is_unended else text).split("\n")[:-1]
    result: list[str] = []
    position = 0
    for hunk in hunks:
        start = _locate(path, lines, hunk, position)
        end = start + len(hunk.old)
        result += lines[position:start]
        result += _merged(lines[start:end], hunk, newline)
        position = end
    patched = "".join(f"{line}\n" for line in result + lines[position:])
    return patched.removesuffix(newline) if is_unended else patched


def _locate(path: str, lines: list[str], hunk: Hunk, position: int) -> int:
    """Where the hunk starts, at or after `position`."""
    start, below = position, len(lines)
    for anchor in hunk.anchors:
        found = _find(lines, [anchor], position)
        if found is None:
            raise _not_found(path, hunk, f"the line '@@ {anchor}'")
        # Models repeat the anchor as the first context line, so the hunk may start on it.
        start, position, below = found, found + 1, found + 1
    if not hunk.old:
        return below
    if hunk.is_at_end:
        start = max(start, len(lines) - len(hunk.old))
    found = _find(lines, hunk.old, start)
    if found is None:
        raise _not_found(path, hunk, "its place")
    return found


def _not_found(path: str, hunk: Hunk, what: str) -> ToolFailed:
    return ToolFailed(
        f"{path}: {what} was not found for the hunk that starts {hunk.title!r}; nothing was "
        "changed. Read the file again and send its exact lines, hunks in file order"
    )


def _find(lines: list[str], wanted: list[str], start: int) -> int | None:
    """The first index at or after `start` where the lines stand, in the strictest form."""
    for form in _FORMS:
        have = [form(line) for line in lines]
        want = [form(line) for line in wanted]
        for index in range(start, len(lines) - len(want) + 1):
            if have[index] == want[0] and have[index : index + len(want)] == want:
                return index
    return None


def _merged(found: list[str], hunk: Hunk, newline: str) -> Iterator[str]:
    originals = iter(found)
    for line in hunk.lines:
        if line[:1] == "+":
            yield line[1:] + newline[:-1]
            continue
        original = next(originals)
        if line[:1] != "-":
            yield original
