"""Tools that answer from a recording."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from agentloop.errors import ToolFailed
from agentloop.wire.items import FunctionTool

if TYPE_CHECKING:
    from agentloop.clock import Clock
    from agentloop.tools.api import Durability, Tool


class RecordedOutput(Struct, frozen=True):
    """What the tool `name` once answered, and how long it took."""

    name: str
    output: str
    duration_s: float


class RecordedTool:
    """Answers call k with output k, whatever the arguments; then with `ToolFailed`."""

    kind: Durability = "pure"

    def __init__(
        self, name: str, outputs: Sequence[RecordedOutput], clock: Clock, is_paced: bool
    ) -> None:
        self.name = name
        self.definition = FunctionTool(
            name=name,
            description="Answers from a recording.",
            parameters={"type": "object", "properties": {}, "additionalProperties": True},
            strict=False,
        )
        self._outputs = deque(outputs)
        self._clock = clock
        self._is_paced = is_paced

    async def run(self, arguments: dict[str, object]) -> str:
        if not self._outputs:
            raise ToolFailed(f"the recording has no more outputs of {self.name}")
        recorded = self._outputs.popleft()
        if self._is_paced:
            await self._clock.sleep(recorded.duration_s)
        return recorded.output


class Recorded:
    """A recording as tools: one for each name in it, so that calls in parallel cannot take each
    other's outputs.

    Args:
        outputs: in the order of the recorded calls.
        clock: paces the answers.
        is_paced: answer after the recorded time, or at once.
    """

    def __init__(self, outputs: Sequence[RecordedOutput], clock: Clock, is_paced: bool) -> None:
        by_name: defaultdict[str, list[RecordedOutput]] = defaultdict(list)
        for output in outputs:
            by_name[output.name].append(output)
        self._tools = [RecordedTool(name, each, clock, is_paced) for name, each in by_name.items()]

    def tools(self) -> list[Tool]:
        """What a `Toolbox` takes."""
        return list(self._tools)
