"""The command `agentloop`: arguments in, exit code out.

0 all is well · 1 the run failed · 2 an option, file or URL is wrong · 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import uvloop

from agentloop.cli import codex_config, run, serve, streams
from agentloop.cli.signals import Signals
from agentloop.errors import AgentLoopError, ConfigError

COMMANDS = (run, serve, codex_config)
RUN_FAILED, WRONG_OPTION = 1, 2

# No bugs of ours: there is no room, or the device is broken.
_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class _Parser(argparse.ArgumentParser):
    """Complains in one line, like everything else here, and guesses no option."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see `{self.prog} --help`)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Nothing is raised, but SystemExit by `--help`."""
    streams.open_missing()
    signals = Signals()
    try:
        return _run(arguments, signals)
    except ConfigError as error:
        return _complain(error.message, WRONG_OPTION)
    except AgentLoopError as error:
        return _complain(error.message, RUN_FAILED)
    except asyncio.CancelledError:
        return _complain(*signals.ending())
    except BrokenPipeError:
        return RUN_FAILED
    except Exception as error:
        return _complain(_describe(error), RUN_FAILED)
    finally:
        streams.let_go()
        signals.restore()


def _run(arguments: Sequence[str] | None, signals: Signals) -> int:
    options = _parser().parse_args(arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(signals.cancelling(options.command(options)))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="agentloop", description="The loop of a coding agent: server and client.")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def _complain(message: str, code: int) -> int:
    streams.complain(message)
    return code


def _describe(error: Exception) -> str:
    """What the system refused (a full disk, mostly), or a bug."""
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        return f"cannot write {error.filename or 'the output'}: {error.strerror}"
    return _describe_bug(error)


def _describe_bug(error: Exception) -> str:
    with tempfile.NamedTemporaryFile(
        "w", prefix="agentloop-", suffix=".log", delete=False, errors="backslashreplace"
    ) as log:
        traceback.print_exception(error, file=log)
    return f"internal error ({type(error).__name__}: {error}); details in {Path(log.name)}"
