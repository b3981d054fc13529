"""The shell: one command in the workspace, in its own session, and nothing of it afterwards."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, Meta, UnsetType

from agentloop.errors import ToolFailed
from agentloop.tools.api import Arguments, Durability, define
from agentloop.tools.capture import Capture
from agentloop.tools.process_group import is_group_running, signal_group

if TYPE_CHECKING:
    from agentloop.clock import Clock

TIMEOUT_S_MAX = 600

_POLL_S = 0.01
_TIMED_OUT = 124  # the exit code of timeout(1)
_GUARD = 'read -r group && { read -r _; kill -s KILL -- "-$group"; }'
_SECRETS = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SETTINGS = {
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PAGER": "cat",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TERM": "dumb",
}

_Command = Annotated[str, Meta(description="The command, as for `bash -c`.")]
_Timeout = (
    Annotated[
        float,
        Meta(
            gt=0,
            le=TIMEOUT_S_MAX,
            description=f"Seconds after which the command is stopped, at most {TIMEOUT_S_MAX}.",
        ),
    ]
    | UnsetType
)


class ShellArguments(Arguments, frozen=True):
    cmd: _Command
    timeout_s: _Timeout = UNSET


class Shell:
    """Runs commands with bash, or sh where there is no bash.

    Standard input is empty; standard output and error come merged after a line with the exit code.
    The command's process group is ended on timeout, on cancellation, and after the command itself
    has ended; only a program that starts a session of its own can outlive it. Where we are killed
    ourselves, a guard kills the group.

    Args:
        workspace: the working directory.
        clock: paces the wait for the group's end.
        timeout_s: for calls that do not bring their own.
        grace_s: between SIGTERM and SIGKILL.
        output_bytes_max: kept of the output, half from its head and half from its tail.
    """

    name = "shell"
    kind: Durability = "once"
    definition = define(
        name,
        "Run a shell command in the workspace. The output starts with the exit code. "
        "Programs left in the background are stopped when the command ends.",
        ShellArguments,
    )

    def __init__(
        self,
        workspace: Path,
        clock: Clock,
        *,
        timeout_s: float = 120.0,
        grace_s: float = 1.0,
        output_bytes_max: int = 36_000,
    ) -> None:
        self._workspace = workspace
        self._clock = clock
        self._timeout_s = timeout_s
        self._polls = round(grace_s / _POLL_S)
        self._output_bytes_max = output_bytes_max
        self._program = shutil.which("bash") or "/bin/sh"

    async def run(self, arguments: dict[str, object]) -> str:
        asked = ShellArguments.read(arguments)
        timeout_s = self._timeout_s if asked.timeout_s is UNSET else asked.timeout_s
        with Capture(self._output_bytes_max) as capture, _guard() as watch:
            process = self._start(asked.cmd, capture.write_fd)
            try:
                watch(process.pid)
                has_exited = await self._exits(process, timeout_s)
            finally:
                await self._end_group(process)
        code = _exit_code(process.wait()) if has_exited else _timed_out(timeout_s)
        return f"exit code: {code}\n{capture.text()}"

    def _start(self, cmd: str, stdout: int) -> Popen[bytes]:
        # Not asyncio's: a cancellation half-way through would leave a group that nobody knows.
        try:
            return Popen(
                [self._program, "-c", cmd],
                cwd=self._workspace,
                env=environment(os.environ),
                stdin=DEVNULL,
                stdout=stdout,
                stderr=STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ToolFailed(f"the command could not start: {error}") from error

    async def _exits(self, process: Popen[bytes], timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_exited(process)
        except TimeoutError:
            return False
        return True

    async def _wait_exited(self, process: Popen[bytes]) -> None:
        """Return once it has exited. Through its pidfd this does not reap it, so that its group id
        still cannot belong to anybody else."""
        pidfd = _pidfd(process.pid)
        if pidfd is None:
            while process.poll() is None:
                await self._clock.sleep(_POLL_S)
            return
        loop = asyncio.get_running_loop()
        exited = asyncio.Event()
        loop.add_reader(pidfd, exited.set)
        try:
            await exited.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    async def _end_group(self, process: Popen[bytes]) -> None:
        has_ended = False
        try:
            has_ended = await self._ends(process, signal.SIGTERM)
        finally:
            if not has_ended:  # the grace time is over, or we were cancelled once more
                await self._ends(process, signal.SIGKILL)

    async def _ends(self, process: Popen[bytes], signal_number: int) -> bool:
        """Whether the process's group is gone within the grace time after this signal."""
        signal_group(process.pid, signal_number)
        for _ in range(self._polls):
            if process.poll() is not None and not is_group_running(process.pid):
                return True
            await self._clock.sleep(_POLL_S)
        return False


@contextmanager
def _guard() -> Iterator[Callable[[int], object]]:
    """A process that kills a group when we die without having left here; gives what names the
    group to it.

    It sees our end by the end of its input. Linux can also tie a process to its parent (prctl,
    PR_SET_PDEATHSIG), but not the programs that the process has started.
    """
    with Popen(["/bin/sh", "-c", _GUARD], bufsize=0, stdin=PIPE, start_new_session=True) as guard:
        assert guard.stdin is not None
        write = guard.stdin.write
        try:
            yield lambda group: write(b"%d\n" % group)
        finally:
            guard.kill()  # before its input ends


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What a command sees: the inherited variables without those whose names look like secrets,
    no pagers or prompts, and the folder of the running Python first on the path."""
    kept = {name: value for name, value in inherited.items() if not _SECRETS.search(name)}
    folders = [str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]
    return kept | _SETTINGS | {"PATH": os.pathsep.join(folders)}


def _exit_code(returncode: int) -> str:
    """As a shell tells it: 128 + n after signal n."""
    if returncode >= 0:
        return str(returncode)
    return f"{128 - returncode} (ended by signal {-returncode})"


def _timed_out(timeout_s: float) -> str:
    hint = f"`timeout_s` may be up to {TIMEOUT_S_MAX}"
    return f"{_TIMED_OUT} (stopped after {timeout_s:g} s; {hint})"


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None  # not Linux, or an old kernel
