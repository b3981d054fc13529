"""Recorded answers, at once or at the recorded pace."""

from __future__ import annotations

import asyncio

import pytest

from agentloop.clock import Clock, run_virtual
from agentloop.tools.api import Toolbox
from agentloop.tools.recorded import Recorded, RecordedOutput

OUTPUTS = [
    RecordedOutput("shell", "first", 2.5),
    RecordedOutput("read", "a file", 1.0),
    RecordedOutput("shell", "second", 3600.0),
]


@pytest.mark.parametrize(("is_paced", "times"), [(True, [2.5, 3.5, 3603.5]), (False, [0, 0, 0])])
def test_outputs_come_in_order_and_at_their_pace(is_paced: bool, times: list[float]) -> None:
    async def main(clock: Clock) -> None:
        box = Toolbox(Recorded(OUTPUTS, clock, is_paced).tools(), timeout_s=10_000)
        names = ("shell", "read", "shell")
        seen = [(await box.call(name, '{"any": "thing"}'), clock.now()) for name in names]
        assert seen == list(zip(["first", "a file", "second"], times, strict=True))

    run_virtual(main)


def test_running_out_is_told_to_the_model() -> None:
    async def main(clock: Clock) -> None:
        box = Toolbox(Recorded(OUTPUTS[:1], clock, is_paced=False).tools())
        await box.call("shell", "{}")
        assert await box.call("shell", "{}") == "error: the recording has no more outputs of shell"

    run_virtual(main)


def test_calls_in_parallel_get_their_own_outputs() -> None:
    async def main(clock: Clock) -> None:
        box = Toolbox(Recorded(OUTPUTS, clock, is_paced=True).tools(), timeout_s=10_000)
        async with asyncio.TaskGroup() as group:
            names = ("read", "shell", "shell")
            calls = [group.create_task(box.call(name, "{}")) for name in names]
        assert [call.result() for call in calls] == ["a file", "first", "second"]
        assert clock.now() == 3600.0

    run_virtual(main)


def test_each_name_is_one_tool() -> None:
    async def main(clock: Clock) -> None:
        box = Toolbox(Recorded(OUTPUTS, clock, is_paced=True).tools())
        assert [definition.name for definition in box.definitions()] == ["shell", "read"]

    run_virtual(main)
