"""A session as people watch it: streamed on a terminal, line by line anywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from agentloop.tools.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from agentloop.agent.api import CallReport, TextKind

OUTPUT_LINES_SHOWN = 4
LINE_CHARS_MAX = 160

_STYLES: dict[TextKind, str] = {"reasoning": "dim italic", "text": "dim"}


class ConsoleObserver:
    """Writes to a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._kind: TextKind = "text"
        self._line = ""  # not yet ended; on a terminal it has been written already

    def start_turn(self, turn: int) -> None:
        self._end_line()
        self._write(f"turn {turn}", "bold")

    def show_text(self, kind: TextKind, delta: str) -> None:
        if kind != self._kind:
            self._end_line()
            self._kind = kind
        *whole, rest = clean(delta).split("\n")
        for piece in whole:
            self._stream(piece)
            self._end_line(is_blank_shown=True)
        self._stream(rest)

    def _stream(self, piece: str) -> None:
        self._line += piece
        if self._console.is_terminal and piece:
            self._write(piece, _STYLES[self._kind], end="")

    def _end_line(self, *, is_blank_shown: bool = False) -> None:
        if self._line or is_blank_shown:
            is_written = self._console.is_terminal
            self._write("" if is_written else self._line, _STYLES[self._kind])
        self._line = ""

    def start_call(self, call: CallReport) -> None:
        self._end_line()
        where = "" if call.is_local else " (server)"
        self._write(f"  ▸ {call.name}{where} {one_line(call.arguments)}", "cyan")

    def end_call(self, call: CallReport) -> None:
        self._end_line()
        self._write(f"  ◂ {call.name} {call.duration_ms:.0f} ms", "green")
        lines = (call.output or "").splitlines()
        for line in lines[:OUTPUT_LINES_SHOWN]:
            self._write(f"    {one_line(line)}", "dim")
        if (hidden := len(lines) - OUTPUT_LINES_SHOWN) > 0:
            self._write(f"    … {hidden} more lines", "dim")

    def end(self) -> None:
        self._end_line()

    def _write(self, text: str, style: str, end: str = "\n") -> None:
        self._console.print(Text(text, style=style, end=""), end=end, soft_wrap=True)


def one_line(text: str) -> str:
    """The text in one line of bounded length."""
    line = " ".join(clean(text).split())
    return line if len(line) <= LINE_CHARS_MAX else line[: LINE_CHARS_MAX - 1] + "…"
