"""Register before announce: who hears of a call can answer it in that very moment."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
import pytest

from agentloop.behaviors.api import Turn
from agentloop.core.states import State
from agentloop.engine.api import Script
from agentloop.loop.live_response import LiveResponse
from agentloop.tokens.render import SaidCall, SaidText
from tests.conformance.heard import Event, check_response, said_again
from tests.loop.loop_kit import Ear, Kit, output_of, run, script_of

TWO_CALLS = script_of(SaidText("a"), SaidCall("shell", "{}"), SaidCall("shell", "{}"))


class Answering(Ear):
    """Answers calls within `send`, before the server has done anything else.

    Args:
        on: the event that is answered: with the output of the call that it announces, or with
            those of all that it lists.
    """

    def __init__(self, kit: Kit, live: LiveResponse, on: str) -> None:
        super().__init__()
        self._kit = kit
        self._live = live
        self._on = on

    def send(self, frames: Sequence[bytes], position: int) -> None:
        super().send(frames, position)
        for event in map(msgspec.json.decode, frames):
            if event["type"] == self._on and (calls := calls_of(event)):
                self._kit.append(self._live, *(output_of(call, "ok") for call in calls))


def calls_of(event: Event) -> list[str]:
    """The calls that an event announces, or lists as pending."""
    if "item" in event:
        item = event["item"]
        return [item["call_id"]] if item["type"] == "function_call" else []
    return [call["call_id"] for call in event["response"]["pending_tool_calls"]]


def plan(turn: Turn) -> Script:
    return script_of(SaidText("b")) if turn.number else TWO_CALLS


@pytest.mark.parametrize(
    ("on", "states"),
    [
        ("response.output_item.done", ["sampling", "idle"]),
        ("response.done", ["suspended", "idle"]),
    ],
)
def test_call_is_answered_the_moment_it_is_heard_of(
    on: str, states: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(kit: Kit) -> None:
        live, first = kit.start(plan)
        ear = live.listener = Answering(kit, live, on)
        while (await ear.wait_stop())["response"]["state"] == "suspended":
            pass  # it was answered already
        said = [*first.said, *ear.said]
        done = [event["response"] for event in said if event["type"] == "response.done"]
        assert [each["state"] for each in done] == states
        assert done[-1]["output"][0]["content"][0]["text"] == "b"
        assert live.response.state is State.IDLE
        assert not live.response.calls.of_turn, "both outputs counted"
        assert [msgspec.json.decode(f) for f in said_again(kit.live, live.response.id)] == said
        check_response(said)

    run(main)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
