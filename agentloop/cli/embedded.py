"""The embedded server: a process of its own, so that it costs the client no time, and never left
behind: it ends when we end it, and when our end of its standard input closes."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from agentloop.cli.serve import SERVING
from agentloop.errors import ConfigError, LinkClosed, ServerFault

if TYPE_CHECKING:
    from pathlib import Path

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


@asynccontextmanager
async def embedded_server(options: Sequence[str], log_path: Path) -> AsyncIterator[str]:
    """A server for as long as the context lasts; gives its URL.

    Args:
        options: of `agentloop serve`.
        log_path: takes what it writes to standard error.

    Raises:
        ConfigError: it refused its options.
        ServerFault: it did not start.
    """
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentloop", "serve", "--port=0", "--until-stdin-closes"),
            *options,
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us: the server still has a Response to end
        )
    try:
        yield await _started(process, log_path)
    except LinkClosed as closed:
        raise await _with_cause(process, closed) from closed
    finally:
        await _stop(process)


async def _started(process: Process, log_path: Path) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            line = (await process.stdout.readline()).decode()
            if line.startswith(SERVING):
                return line.removeprefix(SERVING).strip()
            code = await process.wait()
    except TimeoutError as error:
        raise ServerFault(f"the server did not start in {START_TIMEOUT_S:g} s") from error
    refusal = ConfigError if code == 2 else ServerFault
    raise refusal(f"the server did not start: {_last_line(log_path) or f'exit code {code}'}")


def _last_line(log_path: Path) -> str:
    said = log_path.read_text(errors="replace").strip()
    return said.rpartition("\n")[2].removeprefix("agentloop: ")


async def _with_cause(process: Process, closed: LinkClosed) -> LinkClosed:
    """The same error; it tells of a server that has ended by itself."""
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            code = await process.wait()
            return LinkClosed(f"{closed.message}; the embedded server ended with code {code}")
    return closed


async def _stop(process: Process) -> None:
    """End the server, by force where it takes too long."""
    try:
        with suppress(ProcessLookupError, TimeoutError):
            process.terminate()
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
