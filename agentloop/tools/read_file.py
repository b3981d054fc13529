"""Reading a text file of the workspace, with line numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from agentloop.errors import ToolFailed
from agentloop.tools.api import Arguments, Durability, define
from agentloop.tools.workspace import read_bounded, resolve_inside

if TYPE_CHECKING:
    from pathlib import Path

_OUTPUT_CHARS_MAX = 36_000  # below the boundary's cut, so that the answer can say where to go on
_LINE_CHARS_MAX = 2_000
_BINARY_PROBE_BYTES = 8 * 1024

_PathName = Annotated[str, Meta(description="Relative to the workspace, or absolute within it.")]
_Offset = Annotated[int, Meta(ge=0, description="Lines to skip.")]
_Limit = Annotated[int, Meta(ge=1, le=2_000, description="Lines to read.")]


class ReadFileArguments(Arguments, frozen=True):
    path: _PathName
    offset_lines: _Offset = 0
    limit_lines: _Limit = 2_000


class ReadFile:
    """Answers with numbered lines, and with where to go on where the file has more."""

    name = "read_file"
    kind: Durability = "pure"
    definition = define(
        name, "Read a text file of the workspace; lines come numbered from 1.", ReadFileArguments
    )

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace

    async def run(self, arguments: dict[str, object]) -> str:
        asked = ReadFileArguments.read(arguments)
        data = read_bounded(resolve_inside(self._workspace, asked.path), asked.path)
        if b"\0" in data[:_BINARY_PROBE_BYTES]:
            raise ToolFailed(f"{asked.path} is binary ({len(data)} bytes)")
        lines = data.decode(errors="replace").split("\n")
        if lines[-1] == "":
            lines.pop()
        return _page(asked, lines)


def _page(asked: ReadFileArguments, lines: list[str]) -> str:
    if not lines:
        return f"[{asked.path} is empty]"
    if asked.offset_lines >= len(lines):
        raise ToolFailed(
            f"offset_lines is {asked.offset_lines}, but {asked.path} has {len(lines)} lines"
        )
    shown: list[str] = []
    chars = 0
    end = asked.offset_lines
    for line in lines[asked.offset_lines : asked.offset_lines + asked.limit_lines]:
        numbered = f"{end + 1:>6}\t{_shown(line)}"
        chars += len(numbered) + 1
        if chars > _OUTPUT_CHARS_MAX:
            break
        shown.append(numbered)
        end += 1
    if end < len(lines):
        shown.append(f"[{len(lines) - end} more lines; go on with offset_lines={end}]")
    return "\n".join(shown)


def _shown(line: str) -> str:
    line = line.removesuffix("\r")
    if len(line) <= _LINE_CHARS_MAX:
        return line
    return f"{line[:_LINE_CHARS_MAX]} [... {len(line) - _LINE_CHARS_MAX} characters cut]"
