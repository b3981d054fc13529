"""The ways in which the command ends early: nothing of it is left, and the exit code tells."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import msgspec
import pytest

from tests.cli_kit import TIMEOUT_S, script, server, shell, started, wait_until

ENDLESS = "echo $$ > pid; exec sleep 60"  # a shell command that only a signal ends


@pytest.fixture(autouse=True)
def _temporary_folders_within_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def pid_in(workspace: Path, process: subprocess.Popen[str]) -> int:
    """The pid of the endless command, as soon as it runs."""
    path = workspace / "pid"
    wait_until(lambda: process.poll() is not None or (path.exists() and path.read_text() != ""))
    assert process.poll() is None, process.communicate()
    return int(path.read_text())


@contextmanager
def endless_session(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    script(folder, [[shell(ENDLESS)], [{"text": "never"}]])
    workspace = folder / "workspace"
    workspace.mkdir()
    with started(
        "run", "go", "--json", "--model", "sim-script:test", "--workspace", str(workspace),
        *arguments,
    ) as process:  # fmt: skip
        yield process, pid_in(workspace, process)


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_ends_tools_and_response(
    tmp_path: Path, number: signal.Signals, code: int, says: str
) -> None:
    record = tmp_path / "frames.jsonl"
    with (
        server("--script-dir", str(tmp_path), "--record", str(record)) as (url, _),
        endless_session(tmp_path, "--url", url) as (process, pid),
    ):
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout, stderr) == (code, "", f"agentloop: {says}\n")
    assert not Path(f"/proc/{pid}").exists()
    last = msgspec.json.decode(record.read_bytes().splitlines()[-1])["frame"]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_more_signals_hasten_a_clean_end(tmp_path: Path, number: signal.Signals) -> None:
    with slow_replay(tmp_path) as (process, server_pid):
        while process.poll() is None:
            process.send_signal(number)
            Event().wait(0.002)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
        wait_until(lambda: not _is_running(server_pid))
    assert process.returncode == 128 + number
    assert stderr.count("\n") == 1, stderr
    assert not list(tmp_path.glob("agentloop-*"))


def test_a_server_that_is_killed_is_one_line(tmp_path: Path) -> None:
    with (
        server("--script-dir", str(tmp_path)) as (url, serving),
        endless_session(tmp_path, "--url", url) as (process, pid),
    ):
        serving.kill()
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert stderr.startswith("agentloop: the server went away in turn 1: ")
    assert stderr.count("\n") == 1
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_embedded_server_does_not_outlive_the_run(
    tmp_path: Path, number: signal.Signals
) -> None:
    with slow_replay(tmp_path) as (process, server_pid):
        process.send_signal(number)
        process.communicate(timeout=TIMEOUT_S)
        wait_until(lambda: not _is_running(server_pid))


def test_an_embedded_server_that_dies_is_one_line(tmp_path: Path) -> None:
    with slow_replay(tmp_path) as (process, server_pid):
        os.kill(server_pid, signal.SIGKILL)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert stderr.startswith("agentloop: the server went away in turn 1: ")
    assert stderr.endswith("; the embedded server ended with code -9\n")


@contextmanager
def slow_replay(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A run in the middle of its tool call, and the pid of its server."""
    recording = folder / "slow.json"
    recording.write_bytes(msgspec.json.encode({"messages": _slow_messages()}))
    with started("run", "--paced", "--trajectory", str(recording)) as process:
        assert process.stdout is not None
        while "▸ shell" not in process.stdout.readline():
            assert process.poll() is None
        (server_pid,) = _children(process.pid)
        yield process, server_pid


def _slow_messages() -> list[dict[str, object]]:
    """A recording whose one tool call took an hour."""
    call, ending = "Look.\n\n```bash\nls\n```", "Done."
    return [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "Look around."},
        {"role": "assistant", "content": call, "extra": {"created": 0}},
        {"role": "user", "content": "a file"},
        {"role": "assistant", "content": ending, "extra": {"created": 3600}},
    ]


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_cleanly(number: signal.Signals) -> None:
    with server() as (_, process):
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout, stderr) == (0, "", "")


def test_serve_ends_when_its_standard_input_closes() -> None:
    with server("--until-stdin-closes") as (_, process):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=TIMEOUT_S) == 0
