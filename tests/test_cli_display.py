from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentloop.agent.api import CallReport
from agentloop.cli.display import ConsoleObserver


def shown(*, is_terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, color_system=None, width=40)
    observer = ConsoleObserver(console)
    call = CallReport("c", "shell", '{"cmd":\n"x"}', 1, True, 1.0)
    observer.start_turn(1)
    for delta in ("th", "ink\n", "\nmore [bold]\x1b[31m"):
        observer.show_text("reasoning", delta)
    observer.show_text("text", "answer")
    observer.start_call(call)
    call.output, call.ended_s = "\n".join("abcdef"), 1.5
    observer.end_call(call)
    observer.end()
    return file.getvalue()


PLAIN = """\
turn 1
think

more [bold]
answer
  ▸ shell {"cmd": "x"}
  ◂ shell 500 ms
    a
    b
    c
    d
    … 2 more lines
"""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_session_reads_the_same_streamed_and_line_by_line(is_terminal: bool) -> None:
    assert shown(is_terminal=is_terminal) == PLAIN


def test_without_a_terminal_text_waits_for_its_line() -> None:
    file = io.StringIO()
    observer = ConsoleObserver(Console(file=file, force_terminal=False))
    observer.show_text("text", "half")
    assert file.getvalue() == ""
    observer.show_text("text", " a line\n")
    assert file.getvalue() == "half a line\n"
