"""What people see stays readable: narrow terminals, and servers that say what none should."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from agentloop.agent.agent import Agent
from agentloop.agent.api import Silent
from agentloop.breakdown import Phases, TurnBreakdown
from agentloop.cli.main import _complain
from agentloop.cli.report import BreakdownShown, show_breakdown
from agentloop.cli.streams import COMPLAINT_CHARS_MAX
from agentloop.clock import Clock, run_virtual
from agentloop.drive.append import AppendDrive
from agentloop.errors import AgentLoopError
from agentloop.ids import IdSource
from agentloop.link.memory import memory_pair
from agentloop.wire.requests import Create


def test_complaint_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert _complain("bad\x1b[31m \x07news", 1) == 1
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\x07" not in said


def test_complaint_is_one_line_of_bounded_length(capsys: pytest.CaptureFixture[str]) -> None:
    _complain("why\n" + "x" * 100_000 + "\r\nand where", 1)
    said = capsys.readouterr().err
    assert said.startswith("agentloop: why x")
    assert said.endswith("x and where\n")
    assert said.count("\n") == 1
    assert len(said) < COMPLAINT_CHARS_MAX + 20


def test_breakdown_shows_its_numbers_on_a_terminal_of_20_columns() -> None:
    turn = TurnBreakdown(0, Phases(inference_ms=123.4), [], 1_000, 2_000)
    console = Console(file=io.StringIO(), width=20)
    show_breakdown(console, BreakdownShown("modelled", [turn], turn))
    assert isinstance(console.file, io.StringIO)
    assert "123.4" in console.file.getvalue()


class _Quick:
    async def call(self, name: str, arguments: str) -> str:
        return "done"


def test_server_that_makes_one_call_twice_is_a_plain_error() -> None:
    async def main(clock: Clock) -> None:
        ours, theirs = memory_pair(clock)
        agent = Agent(AppendDrive(ours, IdSource(0)), _Quick(), Silent(), clock)
        response = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        theirs.send(
            [
                msgspec.json.encode({"type": "response.created", "response": response}),
                msgspec.json.encode({"type": "response.output_item.done", "item": call}),
                msgspec.json.encode({"type": "response.output_item.done", "item": call}),
            ]
        )
        with pytest.raises(AgentLoopError):
            await agent.run(Create(model="m"))

    run_virtual(main)
