"""The agent: the client's half of the loop.

    recv ─► a call is done ─► its tool starts (and others beside it) ─┐
      ▲                                                               │ all in, and the loop has
      └────────────── resume, with every output ◄─────────────────────┘ stopped for them

It listens while tools run, so a server that dies stops them at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Protocol

from agentloop.agent.progress import Progress
from agentloop.errors import AgentLoopError, LinkClosed, ProtocolError
from agentloop.wire.items import CallItem, CustomToolCallOutput, FunctionCall, FunctionCallOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentloop.agent.api import Observer, Outcome
    from agentloop.clock import Clock
    from agentloop.drive.api import Drive, Stop
    from agentloop.wire.requests import Create

CANCEL_TIMEOUT_S = 5.0


class Tools(Protocol):
    """What runs the calls: a `Toolbox`."""

    async def call(self, name: str, arguments: str) -> str:
        """The output, clean and bounded. Never raises, except CancelledError once the tool has
        stopped."""


class Agent:
    """Runs one session over one drive."""

    def __init__(self, drive: Drive, tools: Tools, observer: Observer, clock: Clock) -> None:
        self._drive = drive
        self._tools = tools
        self._observer = observer
        self._clock = clock
        self._progress = Progress(observer, is_local=not drive.is_server_run)
        self._called: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, FunctionCallOutput | CustomToolCallOutput] = {}
        self._pending: tuple[str, ...] = ()
        self._has_ended = False

    @property
    def outcome(self) -> Outcome:
        """How the session stands; final once `run` has returned."""
        return self._progress.outcome

    async def run(self, request: Create) -> Outcome:
        """The whole session, to its terminal. Then the link is closed, however it ended.

        Cancelled, it ends the tools first and then the Response, within `CANCEL_TIMEOUT_S`.

        Raises:
            Refused: the server answered with an error frame.
            LinkClosed: the server went away.
            ProtocolError: the server said what no server may say.
        """
        try:
            await self._converse(request)
        except LinkClosed as closed:
            self._blame(closed)
        except ProtocolError:  # what this server still says tells us nothing: don't wait for it
            self._drive.cancel()
            raise
        except BaseException:
            await self._cancel()
            raise
        finally:
            self._observer.end()
            await self._drive.disconnect()
        return self.outcome

    async def _converse(self, request: Create) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._progress.send(self._clock.now(), item_count=1)
                self._drive.create(request)
                while not self._has_ended:
                    await self._listen(group)
                for tool in self._running.values():
                    tool.cancel()  # nobody waits for its output any more
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _listen(self, group: asyncio.TaskGroup) -> None:
        event = await self._drive.recv()
        item = self._progress.feed(event, self._clock.now())
        if isinstance(item, CallItem) and not self._drive.is_server_run:
            self._check_new(item.call_id)
            self._running[item.call_id] = group.create_task(self._run_tool(item))
        stop = self._drive.stop_of(event)
        if stop is not None:
            self._on_stop(stop)

    async def _run_tool(self, call: CallItem) -> None:
        """Run one call, and answer if it was the last that the loop waits for."""
        if isinstance(call, FunctionCall):
            output = await self._tools.call(call.name, call.arguments)
            self._answers[call.call_id] = FunctionCallOutput(call_id=call.call_id, output=output)
        else:
            output = await self._tools.call(call.name, call.input)
            self._answers[call.call_id] = CustomToolCallOutput(call_id=call.call_id, output=output)
        self._progress.end_call(call.call_id, output, self._clock.now())
        del self._running[call.call_id]
        self._answer_if_ready()

    def _on_stop(self, stop: Stop) -> None:
        self._progress.stop(stop, self._drive.last_received_s)
        self._has_ended = stop.is_final
        if stop.is_final:
            return
        if not stop.pending:
            self._drive.close()
            return
        self._check_known(stop.pending)
        self._pending = stop.pending
        self._answer_if_ready()

    def _check_new(self, call_id: str) -> None:
        """A call made twice would run twice."""
        if call_id in self._called:
            raise ProtocolError(f"the server made call {call_id!r} twice")
        self._called.add(call_id)

    def _check_known(self, call_ids: Sequence[str]) -> None:
        for call_id in call_ids:
            if call_id not in self._running and call_id not in self._answers:
                raise ProtocolError(f"the server waits for call {call_id!r}, which it never made")

    def _answer_if_ready(self) -> None:
        """One answer for all calls of a stop, as soon as the last output is in."""
        if self._pending and all(call_id in self._answers for call_id in self._pending):
            outputs = [self._answers.pop(call_id) for call_id in self._pending]
            self._pending = ()
            self._progress.send(self._clock.now(), item_count=len(outputs))
            self._drive.resume(outputs)

    # -- the ways to end early -----------------------------------------------------------------

    async def _cancel(self) -> None:
        """End the Response: it would outlive us. Its terminal, or a refusal, is the end of it."""
        if self._has_ended:
            return
        with suppress(TimeoutError, AgentLoopError):
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                self._drive.cancel()
                while not self._has_ended:
                    event = await self._drive.recv()
                    stop = self._drive.stop_of(event)
                    if stop is not None and stop.is_final:
                        self._on_stop(stop)

    def _blame(self, closed: LinkClosed) -> NoReturn:
        """Say what was going on when the link closed."""
        where = f"in turn {self.outcome.turns}" if self.outcome.turns else "before the first turn"
        raise LinkClosed(
            f"the server went away {where}: {closed.message}", close_code=closed.close_code
        ) from closed
