"""The shell: what it answers, and that nothing of a command is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from agentloop.clock import WallClock
from agentloop.errors import ToolFailed
from agentloop.tools.shell import Shell, environment


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, WallClock())


def is_running(pid: int) -> bool:
    """A process that has ended but was not collected by its parent does not run any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def has_children() -> bool:
    """Whether this process has any child, ended and uncollected ones included."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


async def pid_in(path: Path) -> int:
    """The process id that a command writes to a file, once it is there."""
    while not (path.exists() and path.read_text().endswith("\n")):
        await WallClock().sleep(0.005)
    return int(path.read_text())


async def test_output_starts_with_the_exit_code(shell: Shell) -> None:
    assert await shell.run({"cmd": "echo out; echo err >&2; exit 3"}) == "exit code: 3\nout\nerr\n"


async def test_it_runs_in_the_workspace_without_input(shell: Shell, tmp_path: Path) -> None:
    output = await shell.run({"cmd": "pwd; cat"})
    assert output == f"exit code: 0\n{tmp_path}\n"


async def test_python_is_this_python(shell: Shell) -> None:
    output = await shell.run({"cmd": "python -c 'import sys; print(sys.prefix)'"})
    assert output == f"exit code: 0\n{sys.prefix}\n"


async def test_it_has_a_session_of_its_own(shell: Shell) -> None:
    cmd = "python -c 'import os; print(os.getsid(0) == os.getpgid(0))'"
    assert await shell.run({"cmd": cmd}) == "exit code: 0\nTrue\n"


async def test_python_leaves_no_caches_behind(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("print('imported')")
    assert "imported" in await shell.run({"cmd": "python -c 'import module'"})
    assert [path.name for path in tmp_path.iterdir()] == ["module.py"]


def test_secrets_stay_outside() -> None:
    secrets = {"OPENAI_API_KEY": "a", "github_token": "b", "My_Secret_1": "c", "DB_PASSWORD": "d"}
    seen = environment({**secrets, "HOME": "/h", "PATH": "/bin"})
    assert not set(secrets) & set(seen)
    assert seen["HOME"] == "/h"
    assert seen["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/bin"


async def test_a_secret_of_this_process_is_not_seen(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "visible")
    assert "visible" not in await shell.run({"cmd": "env"})


async def test_a_signal_is_told_as_a_shell_tells_it(shell: Shell) -> None:
    output = await shell.run({"cmd": "kill -9 $$"})
    assert output.startswith("exit code: 137 (ended by signal 9)\n")


async def test_invalid_bytes_become_replacement_characters(shell: Shell) -> None:
    assert await shell.run({"cmd": r"printf 'a\xff\0b'"}) == "exit code: 0\na\ufffd\0b"


async def test_runaway_output_stays_in_bounded_memory(shell: Shell) -> None:
    tracemalloc.start()
    try:
        output = await shell.run({"cmd": "echo first; yes | head -c 200000000; echo last"})
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000_000
    assert output.startswith("exit code: 0\nfirst\ny\n")
    assert output.endswith("y\nlast\n")
    assert "[... 199964011 bytes cut ...]" in output


async def test_a_timeout_ends_the_whole_group_and_keeps_the_output(
    shell: Shell, tmp_path: Path
) -> None:
    cmd = "echo begun; (sleep 1000 & echo $! > child; wait) | cat; echo never"
    output = await shell.run({"cmd": cmd, "timeout_s": 0.5})
    assert output == "exit code: 124 (stopped after 0.5 s; `timeout_s` may be up to 600)\nbegun\n"
    assert not is_running(int((tmp_path / "child").read_text()))


async def test_a_background_program_ends_with_its_command(shell: Shell, tmp_path: Path) -> None:
    cmd = "sleep 1000 & echo $! > child; echo done"  # the sleep holds the output open
    assert await shell.run({"cmd": cmd}) == "exit code: 0\ndone\n"
    assert not is_running(int((tmp_path / "child").read_text()))


async def test_what_ignores_the_first_signal_is_killed(tmp_path: Path) -> None:
    shell = Shell(tmp_path, WallClock(), grace_s=0.1)
    cmd = "trap '' TERM; echo $$ > leader; while :; do sleep 0.05; done"
    assert "exit code: 124" in await shell.run({"cmd": cmd, "timeout_s": 0.5})
    assert not is_running(int((tmp_path / "leader").read_text()))


async def cancel_a_command(tmp_path: Path, times: int) -> None:
    shell = Shell(tmp_path, WallClock(), grace_s=0.1)
    cmd = "trap '' TERM; (trap '' TERM; sleep 1000) & echo $! > child; wait; sleep 1000"
    async with asyncio.TaskGroup() as group:
        running = group.create_task(shell.run({"cmd": cmd}))
        child = await pid_in(tmp_path / "child")
        for _ in range(times):
            running.cancel()
            await asyncio.sleep(0)
    assert running.cancelled()
    assert not is_running(child)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancelled_command_is_gone_before_the_cancellation_passes(
    tmp_path: Path, times: int
) -> None:
    await cancel_a_command(tmp_path, times)


@pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_every_loop_runs_and_cancels(
    tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main() -> None:
        shell = Shell(tmp_path, WallClock())
        assert await shell.run({"cmd": "sleep 0.01; echo hi"}) == "exit code: 0\nhi\n"
        await cancel_a_command(tmp_path, times=1)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


async def test_without_pidfds_it_polls(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert await shell.run({"cmd": "sleep 0.05; echo hi; exit 1"}) == "exit code: 1\nhi\n"
    assert "exit code: 124" in await shell.run({"cmd": "sleep 1000", "timeout_s": 0.05})


AGENT = """
import asyncio, sys
from pathlib import Path
from agentloop.clock import WallClock
from agentloop.tools.shell import Shell
command = {"cmd": "sleep 60 & echo $! > child; wait; echo never"}
asyncio.run(Shell(Path(sys.argv[1]), WallClock()).run(command))
"""


async def test_a_command_ends_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)]) as agent:
        child = await pid_in(tmp_path / "child")
        agent.kill()
    async with asyncio.timeout(10):
        while is_running(child):
            await WallClock().sleep(0.005)


async def test_nothing_stays_open(shell: Shell) -> None:
    before = set(os.listdir("/dev/fd"))
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(shell.run({"cmd": f"echo {number}; sleep 1000 &"}))
        group.create_task(shell.run({"cmd": "sleep 1000", "timeout_s": 0.05}))
    assert set(os.listdir("/dev/fd")) == before
    assert not has_children()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cmd": "echo \0"}, "null byte"),
        ({"cmd": "x" * 3_000_000}, "could not start"),
        ({"cmd": "true", "timeout_s": 601}, r"\$\.timeout_s"),
        ({"cmd": "true", "timeout_s": 0}, r"\$\.timeout_s"),
        ({"command": "true"}, "cmd: string"),
    ],
    ids=["nul", "too long", "above the limit", "zero", "other name"],
)
async def test_what_cannot_run_says_why(
    shell: Shell, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ToolFailed, match=message):
        await shell.run(arguments)


async def test_a_missing_workspace_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="gone"):
        await Shell(tmp_path / "gone", WallClock()).run({"cmd": "true"})
