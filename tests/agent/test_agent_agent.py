from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import Raw

from agentloop.agent.agent import CANCEL_TIMEOUT_S, Agent, Tools
from agentloop.agent.api import CallReport, Outcome, TextKind
from agentloop.clock import Clock, WallClock, run_virtual
from agentloop.drive.api import Refused
from agentloop.drive.append import AppendDrive
from agentloop.drive.hosted import HostedDrive
from agentloop.drive.socket import SocketDrive
from agentloop.errors import LinkClosed, ProtocolError
from agentloop.ids import IdSource
from agentloop.link.memory import memory_pair
from agentloop.tools.api import Durability, Toolbox
from agentloop.tools.shell import Shell
from agentloop.wire.items import FunctionTool
from agentloop.wire.requests import Create
from tests.drive.fake_server import FakeServer

REQUEST = Create(model="m", input=Raw(b'"go"'))


class Echo:
    """Answers at once, with what it was called with."""

    async def call(self, name: str, arguments: str) -> str:
        return f"{name}{arguments}"


class Gated:
    """Each call starts when it is called, and answers when the test opens its gate."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[str] = asyncio.Queue(16)
        self.gates: dict[str, asyncio.Event] = {}
        self.stopped: list[str] = []

    async def call(self, name: str, arguments: str) -> str:
        self.gates[arguments] = asyncio.Event()
        await self.started.put(arguments)
        try:
            await self.gates[arguments].wait()
        except asyncio.CancelledError:
            self.stopped.append(arguments)
            raise
        return f"out {arguments}"


class Notes:
    """An observer that writes everything down."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def start_turn(self, turn: int) -> None:
        self.lines.append(f"turn {turn}")

    def show_text(self, kind: TextKind, delta: str) -> None:
        self.lines.append(f"{kind} {delta}")

    def start_call(self, call: CallReport) -> None:
        self.lines.append(f"start {call.name}")

    def end_call(self, call: CallReport) -> None:
        self.lines.append(f"end {call.name}: {call.output}")

    def end(self) -> None:
        self.lines.append("end")


Serve = Callable[[FakeServer], Awaitable[None]]


def make(
    tools: Tools, drive_type: type[SocketDrive] = AppendDrive, clock: Clock | None = None
) -> tuple[Agent, FakeServer, Notes]:
    clock = clock or WallClock()
    client, server = memory_pair(clock)
    notes = Notes()
    return Agent(drive_type(client, IdSource(1)), tools, notes, clock), FakeServer(server), notes


async def session(
    serve: Serve, tools: Tools, drive_type: type[SocketDrive] = AppendDrive
) -> tuple[Outcome, Notes]:
    """A whole session with this server; the server's expectations must all be met."""
    agent, server, notes = make(tools, drive_type)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(agent.run(REQUEST))
        await serve(server)
    with pytest.raises(LinkClosed):
        await server.link.recv()  # the agent has hung up
    await server.link.close()
    return running.result(), notes


async def test_a_session_with_one_call() -> None:
    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.created()
        server.say("response.output_item.added", output_index=0, item={"type": "reasoning"})
        server.say("response.reasoning_text.delta", output_index=0, delta="hm")
        server.call(1, "call_1", "shell", '{"cmd":"ls"}')
        server.suspended("call_1")
        append = await server.read("response.append")
        assert append["input"] == [
            {"type": "function_call_output", "call_id": "call_1", "output": 'shell{"cmd":"ls"}'}
        ]
        server.say("response.append.accepted", pending=[])
        server.message(2, "all done")
        server.idle()
        await server.read("response.close")
        server.end()

    outcome, notes = await session(serve, Echo())
    assert notes.lines == [
        "turn 1", "reasoning hm", "start shell", 'end shell: shell{"cmd":"ls"}', "turn 2", "end"
    ]  # fmt: skip
    assert (outcome.status, outcome.reason, outcome.turns) == ("completed", "", 2)
    assert (outcome.text, outcome.response_id) == ("all done", "resp_1")
    assert [stretch.turns for stretch in outcome.stretches] == [1, 1]
    assert outcome.usage is not None
    assert outcome.usage.total_tokens == 15
    assert outcome.item_count == 4  # input, call, output, message


async def test_parallel_calls_overlap_and_are_answered_together_in_call_order() -> None:
    tools = Gated()

    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.created()
        server.call(0, "call_a", arguments="a")
        assert await tools.started.get() == "a"  # before the turn has ended
        server.call(1, "call_b", arguments="b")
        assert await tools.started.get() == "b"  # while a still runs
        tools.gates["b"].set()
        server.suspended("call_a", "call_b")
        tools.gates["a"].set()
        append = await server.read("response.append")
        assert [item["output"] for item in append["input"]] == ["out a", "out b"]
        server.end()

    outcome, _ = await session(serve, tools)
    assert [call.output for call in outcome.calls] == ["out a", "out b"]


async def test_outputs_wait_for_the_stop() -> None:
    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.created()
        server.call(0, "call_a")
        server.call(1, "call_b")
        for _ in range(10):
            await asyncio.sleep(0)  # the tools are long done
        server.suspended("call_a", "call_b")
        assert len((await server.read("response.append"))["input"]) == 2
        server.end()

    await session(serve, Echo())


class Mojibake:
    """Says what UTF-8 cannot: half of a character."""

    name = "tool"
    kind: Durability = "pure"
    definition = FunctionTool(name=name)

    async def run(self, arguments: dict[str, object]) -> str:
        return "half \ud800"


async def test_an_output_that_the_wire_cannot_carry_is_mended() -> None:
    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.created()
        server.call(0, "call_1")
        server.suspended("call_1")
        assert (await server.read("response.append"))["input"][0]["output"] == "half \ufffd"
        server.end()

    await session(serve, Toolbox([Mojibake()]))


async def test_in_design_hosted_the_agent_only_listens() -> None:
    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.created()
        server.call(0, "call_1", "shell")
        server.output(1, "call_1", "exit code: 0")
        server.message(2, "done")
        server.end()

    outcome, notes = await session(serve, Gated(), HostedDrive)
    assert notes.lines == ["turn 1", "start shell", "end shell: exit code: 0", "turn 2", "end"]
    assert not outcome.calls[0].is_local
    assert [stretch.turns for stretch in outcome.stretches] == [2]


async def test_a_search_is_shown_and_the_turn_after_it_counts() -> None:
    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.created()
        server.search(0)
        server.call(1, "call_1")  # of the same turn
        server.suspended("call_1")
        await server.read("response.append")
        server.search(2)
        server.message(3, "found")
        server.idle()
        await server.read("response.close")
        server.end()

    outcome, _ = await session(serve, Echo())
    assert outcome.turns == 3
    assert [(call.name, call.is_local) for call in outcome.calls] == [
        ("web_search", False), ("tool", True), ("web_search", False)
    ]  # fmt: skip


async def test_a_response_that_fails_is_an_outcome_and_stops_the_tools() -> None:
    tools = Gated()

    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.created()
        server.call(0, "call_1", arguments="a")
        await tools.started.get()
        server.end("failed", error={"code": "server_error", "message": "the engine failed"})

    outcome, _ = await session(serve, tools)
    assert tools.stopped == ["a"]
    assert (outcome.status, outcome.reason) == ("failed", "server_error: the engine failed")


async def test_cancellation_kills_a_running_command_and_ends_the_response(tmp_path: Path) -> None:
    agent, server, notes = make(Toolbox([Shell(tmp_path, WallClock())]))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(agent.run(REQUEST))
        await server.read("response.create")
        server.created()
        command = '{"cmd":"echo $$ > pid; sleep 60"}'
        server.call(0, "call_1", "shell", command)
        server.suspended("call_1")
        pid = await _wait_for(tmp_path / "pid")
        running.cancel()
        assert (await server.read("response.cancel"))["response_id"] == "resp_1"
        assert not Path(f"/proc/{pid}").exists()
        assert not running.done()  # it waits for the terminal
        server.end("cancelled")
    assert running.cancelled()
    assert agent.outcome.status == "cancelled"
    assert notes.lines[-1] == "end"
    await server.link.close()


async def _wait_for(path: Path) -> str:
    while not (path.exists() and path.read_text().strip()):
        await WallClock().sleep(0.005)
    return path.read_text().strip()


def test_a_cancelled_agent_does_not_wait_for_ever() -> None:
    async def main(clock: Clock) -> float:
        agent, server, _ = make(Echo(), clock=clock)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(agent.run(REQUEST))
            await server.read("response.create")
            cancelled_s = clock.now()
            running.cancel()
            await server.read("response.cancel")  # and no terminal comes
        assert running.cancelled()
        return clock.now() - cancelled_s

    assert run_virtual(main) == CANCEL_TIMEOUT_S


async def fails(serve: Serve, tools: Tools, error: type[Exception], match: str) -> None:
    agent, server, notes = make(tools)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(_failing(agent, error, match))
        await serve(server)
        await running
    assert notes.lines[-1] == "end"
    await server.link.close()


async def _failing(agent: Agent, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        await agent.run(REQUEST)


async def test_a_server_that_dies_stops_the_tools_and_is_one_error() -> None:
    tools = Gated()

    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.created()
        server.call(0, "call_1", arguments="a")
        server.suspended("call_1")
        await tools.started.get()
        server.link.abort()

    await fails(serve, tools, LinkClosed, "the server went away in turn 1: ")
    assert tools.stopped == ["a"]


async def test_a_refused_create_is_one_error() -> None:
    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.say("error", status=400, error={"code": "model_not_found", "message": "no model m"})
        await server.read("response.cancel")
        server.say("error", status=400, error={"code": "response_not_found", "message": "none"})

    await fails(serve, Echo(), Refused, "no model m")


async def test_a_call_that_was_never_made_is_one_error() -> None:
    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.created()
        server.suspended("call_9")
        await server.read("response.cancel")
        server.end("cancelled")

    await fails(serve, Echo(), ProtocolError, "call_9")


def test_a_server_that_talks_nonsense_is_not_waited_for() -> None:
    async def main(clock: Clock) -> float:
        agent, server, _ = make(Echo(), clock=clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(_failing(agent, ProtocolError, "event"))
            await server.read("response.create")
            server.link.send([b"220 mail.example ESMTP"])
            await server.read("response.cancel")  # it is told, all the same
        return clock.now()

    assert run_virtual(main) == 0.0


def test_a_call_made_twice_is_one_error_and_runs_once() -> None:
    tools = Gated()

    async def serve(server: FakeServer) -> None:
        await server.read("response.create")
        server.created()
        server.call(0, "call_1", arguments="a")
        await tools.started.get()
        tools.gates["a"].set()
        server.suspended("call_1")
        await server.read("response.append")
        server.call(1, "call_1", arguments="b")  # long answered
        await server.read("response.cancel")

    run_virtual(lambda _: fails(serve, tools, ProtocolError, "call_1"))
    assert list(tools.gates) == ["a"]
