"""The command `agentloop`: arguments in, exit code out.

0 all is well · 1 the run failed · 2 an option, file or URL is wrong · 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import uvloop

from agentloop.cli import run, serve
from agentloop.errors import AgentLoopError, ConfigError

COMMANDS = (run, serve)
RUN_FAILED, WRONG_OPTION = 1, 2

Command = Callable[[argparse.Namespace], Awaitable[int]]


class _Parser(argparse.ArgumentParser):
    """Complains in one line, like everything else here, and guesses no option."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see `{self.prog} --help`)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Nothing is raised, but SystemExit by `--help`."""
    try:
        options = _parser().parse_args(arguments)
        return _run(options.command, options)
    except ConfigError as error:
        return _complain(error.message, WRONG_OPTION)
    except AgentLoopError as error:
        return _complain(error.message, RUN_FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", 128 + signal.SIGINT)
    except asyncio.CancelledError:
        return _complain("terminated", 128 + signal.SIGTERM)
    except BrokenPipeError:
        _forget_stdout()
        return RUN_FAILED
    except Exception as error:
        return _complain(_describe_bug(error), RUN_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="agentloop", description="The loop of a coding agent: server and client.")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def _run(command: Command, options: argparse.Namespace) -> int:
    """Ctrl-C and SIGTERM cancel the command, which then has the time to end cleanly."""

    async def cancellable() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await command(options)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(cancellable())


def _complain(message: str, code: int) -> int:
    print(f"agentloop: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


def _forget_stdout() -> None:
    """Nobody reads it any more: let nothing be flushed into it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _describe_bug(error: Exception) -> str:
    with tempfile.NamedTemporaryFile(
        "w", prefix="agentloop-", suffix=".log", delete=False, errors="backslashreplace"
    ) as log:
        traceback.print_exception(error, file=log)
    return f"internal error ({type(error).__name__}: {error}); details in {Path(log.name)}"
