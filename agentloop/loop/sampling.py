"""The heart: one agent run as one long-lived Response.

    turn ──► engine steps ──► records ──► events
      ▲            │ a call is whole
      │            ▼
      └── await its answer: a hosted tool's task, or a future that the client's append resolves

A local tool is to this loop what a hosted one is: something to await. While it waits for the
client the Response is *suspended* (calls are pending) or *idle* (nothing is), and `response.done`
says so. The loop ends with the Response's one terminal: its own, or one that a command made, in
which case the task is cancelled.

    _sample            one turn: steps become records; each whole call gets its future, then is
                       announced
    _run_hosted        await what the server runs
    response.stop      suspend, rest idle, complete, or go straight on
    _wait_for_client   await what the client runs

`wake` is the other end: whoever publishes hands it every committed record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from agentloop.behaviors.api import Behavior, Turn
from agentloop.behaviors.attempts import Attempts
from agentloop.breakdown import HOSTED_TOOLS, Breakdown
from agentloop.clock import Clock
from agentloop.core.calls import Call
from agentloop.core.context import Entry
from agentloop.core.records import AnyRecord, Appended, Expired
from agentloop.core.response import Response
from agentloop.core.states import State
from agentloop.engine.api import (
    Engine,
    EngineUsage,
    Finish,
    Generation,
    Prefix,
    PrefixLost,
    Script,
)
from agentloop.errors import EngineFault
from agentloop.loop.request import generation_request
from agentloop.loop.steps import StepStream

BACKOFF_S, BACKOFF_S_MAX = 0.05, 2.0


class HostedTools(Protocol):
    """The tools that the server runs itself."""

    async def answer(self, call: Call) -> Entry:
        """The call's output, rendered. A tool's failure is an output too."""


class Sampling:
    """The loop of one Response.

    Args:
        publish: carries out what the Response has committed; never waits.
    """

    def __init__(
        self,
        response: Response,
        *,
        engine: Engine,
        behavior: Behavior,
        attempts: Attempts,
        hosted: HostedTools,
        clock: Clock,
        breakdown: Breakdown,
        publish: Callable[[], None],
    ) -> None:
        self.response = response
        self._engine = engine
        self._behavior = behavior
        self._attempts = attempts
        self._hosted = hosted
        self._clock = clock
        self._breakdown = breakdown
        self._publish = publish
        self._prefix: Prefix | None = None
        self._answers: dict[str, asyncio.Future[Entry]] = {}
        self._message: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Every turn, until the terminal."""
        async with asyncio.TaskGroup() as tools:
            try:
                while self.response.is_open:
                    if await self._sample(tools):
                        await self._run_hosted()
                        self.response.stop()
                    self._hand_off()
                    await self._wait_for_client()
            finally:
                self._drop_answers()

    # -- one turn ------------------------------------------------------------------------------

    async def _sample(self, tools: asyncio.TaskGroup) -> bool:
        """One turn, tried again from the recorded ids after a retryable failure.

        Returns: whether the Response is still open.
        """
        self._drop_answers()
        self._breakdown.start_turn(self.response.turn, self._clock.now())
        retries = self.response.config.options.engine_retries
        for attempt in range(retries + 1):
            self.response.start_turn(attempt)
            self._publish()
            finish = await self._generate(attempt, tools)
            if finish.error is None:
                self._prefix = finish.prefix
                self.response.end_turn(finish.reason, finish.usage.cached_tokens)
                break
            self._prefix = None
            if not finish.error.is_retryable or attempt == retries:
                self.response.end("failed", error=(finish.error.code, finish.error.message))
                break
            await self._back_off(attempt)
        return self.response.is_open

    async def _generate(self, attempt: int, tools: asyncio.TaskGroup) -> Finish:
        """One generation: its steps become records, its calls are registered, then announced."""
        stream = StepStream()
        submitted_s = self._clock.now()
        try:
            generation = self._submit(attempt, stream)
        except EngineFault as fault:
            return Finish("error", EngineUsage(), error=fault)
        try:
            async for ids, sizes in stream:
                self.response.sample(ids, sizes)
                self._register_calls(tools)
                self._publish()
        finally:
            generation.cancel()
            self._breakdown.add("inference", submitted_s, self._clock.now())
        return _checked(stream.finish)

    def _submit(self, attempt: int, stream: StepStream) -> Generation:
        """Continue the engine's prefix, or give it everything where it lost that."""
        response, script = self.response, self._plan()
        try:
            request = generation_request(response, self._prefix, script, attempt)
            return self._engine.submit(request, stream)
        except PrefixLost:
            self._prefix = None
            request = generation_request(response, None, script, attempt)
            return self._engine.submit(request, stream)

    def _plan(self) -> Script:
        """What a simulated model says in this turn."""
        response, config = self.response, self.response.config
        attempt = self._attempts.count(self._behavior.key, config.seed, response.turn)
        return self._behavior.plan(
            Turn(response.turn, attempt, response.context, config.tools, config.seed)
        )

    async def _back_off(self, attempt: int) -> None:
        failed_s = self._clock.now()
        await self._clock.sleep(min(BACKOFF_S * 2**attempt, BACKOFF_S_MAX))
        self._breakdown.add("backoff", failed_s, self._clock.now())

    # -- answers -------------------------------------------------------------------------------

    def _register_calls(self, tools: asyncio.TaskGroup) -> None:
        """A call's answer can be awaited before anyone hears of the call."""
        for call in self.response.calls.of_turn:
            if call.call_id not in self._answers:
                self._answers[call.call_id] = (
                    tools.create_task(self._hosted.answer(call))
                    if call.is_hosted
                    else asyncio.get_running_loop().create_future()
                )

    async def _run_hosted(self) -> None:
        """The outputs of the calls that the server runs, recorded in call order."""
        for call in self.response.calls.hosted():
            self._publish()  # nothing that is committed waits
            started_s = self._clock.now()
            output = await self._answers[call.call_id]
            self._breakdown.add(HOSTED_TOOLS, started_s, self._clock.now())
            self.response.answer_hosted(call, output)

    def _hand_off(self) -> None:
        """The turn's last frames are on their way."""
        self._publish()
        self._breakdown.stop(self._clock.now())

    async def _wait_for_client(self) -> None:
        """Suspended: until each pending call is answered. Idle: until the next message."""
        if self.response.state is State.SUSPENDED:
            for call in self.response.calls.pending():
                await self._answers[call.call_id]
        elif self.response.state is State.IDLE:
            self._message = asyncio.get_running_loop().create_future()
            await self._message

    def wake(self, record: AnyRecord) -> None:
        """A committed record may be what the loop waits for."""
        if isinstance(record, Appended | Expired):
            for call_id, output in record.outputs.items():
                self._answers[call_id].set_result(output)
        if record.kind == "resumed" and self._message is not None:
            self._message.set_result(None)
            self._message = None

    def _drop_answers(self) -> None:
        """No future outlives its turn."""
        for answer in self._answers.values():
            answer.cancel()
        self._answers.clear()


def _checked(finish: Finish | None) -> Finish:
    """A finish that nobody here asked for, as when the engine closes, is a failure."""
    assert finish is not None, "the stream ends with the finish"
    if finish.reason != "cancel":
        return finish
    fault = EngineFault("the engine stopped", code="engine_closed", is_retryable=False)
    return Finish("error", finish.usage, error=fault)
