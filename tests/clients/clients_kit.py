"""What tests of real clients share: processes that end with the test, and a server that records."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest

from agentloop.cli.serve import SERVING
from tests.cli_kit import COMMAND
from tests.clients.install import program_of

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 30  # of one wait: far above what anything here takes
LINE_BYTES_MAX = 2**24

Message = dict[str, Any]


class Frame(msgspec.Struct):
    """A line of a server's record; `in` is what the client sent."""

    t_s: float
    link: int
    dir: Literal["in", "out"]
    bytes: int
    frame: Message


class Served(NamedTuple):
    """A server that runs and writes a record."""

    url: str
    record_path: Path

    def frames(self) -> list[Frame]:
        """All frames so far, of both directions."""
        lines = self.record_path.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Frame) for line in lines]

    def received(self) -> list[Message]:
        """What the client sent."""
        return [each.frame for each in self.frames() if each.dir == "in"]

    def said(self, *types: str) -> list[Message]:
        """What the server sent; of these types, where any are named."""
        sent = (each.frame for each in self.frames() if each.dir == "out")
        return [event for event in sent if not types or event["type"] in types]

    def calls(self) -> list[str]:
        """The ids of all calls that were announced, in order."""
        items = (event["item"] for event in self.said("response.output_item.done"))
        return [item["call_id"] for item in items if "call_id" in item]


def installed(name: str) -> Path:
    """The program of a client; without it a test is skipped, or fails where all must run."""
    program = program_of(name)
    if program is None:
        missing = f"{name} is not installed: python tests/clients/install.py"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return program


def outputs(message: Message) -> Iterator[tuple[str, str]]:
    """Call id and output of the tool outputs in what a client sent."""
    for item in message["input"]:
        if item.get("type") == "function_call_output":
            yield item["call_id"], item["output"]


@asynccontextmanager
async def process(
    *command: str | Path, cwd: Path, log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """A process with pipes; it ends because its input does, by force only where that fails.

    Args:
        log: where its standard error goes.
        environment: all that it gets to know; None is our own.
    """
    with log.open("wb") as stderr:
        started = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=stderr, cwd=cwd, env=environment,
            start_new_session=True, limit=LINE_BYTES_MAX,
        )  # fmt: skip
    try:
        yield started
        async with asyncio.timeout(TIMEOUT_S):
            await started.communicate(b"")  # None would leave the input open
    finally:
        if started.returncode is None:
            os.killpg(started.pid, signal.SIGKILL)
            async with asyncio.timeout(TIMEOUT_S):
                await started.communicate()


@asynccontextmanager
async def serving(folder: Path, *arguments: str) -> AsyncIterator[Served]:
    """`agentloop serve`, with its record and log in a folder. It must end well and complain never.

    Args:
        arguments: more of its options.
    """
    record, log = folder / "frames.jsonl", folder / "server.log"
    serve = ["serve", "--port", "0", "--until-stdin-closes", "--record", str(record), *arguments]
    async with process(*COMMAND, *serve, cwd=ROOT, log=log) as server:
        assert server.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            line = (await server.stdout.readline()).decode()
        assert line.startswith(SERVING), log.read_text()
        yield Served(line.removeprefix(SERVING).strip(), record)
    assert (server.returncode, log.read_text()) == (0, "")
