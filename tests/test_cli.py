"""The command as a user runs it: a process, its output, its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from agentloop.cli import main

COMMAND = [sys.executable, "-m", "agentloop"]
TIMEOUT_S = 60
ENDLESS = "echo $$ > pid; exec sleep 60"  # a shell command that only a signal ends


@pytest.fixture(autouse=True)
def _temporary_folders_within_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def agentloop(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        env=_environment(),
        cwd=cwd,
        check=False,
    )


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[1])
    return os.environ | {"PYTHONPATH": root, "COLUMNS": "100"}


@contextmanager
def started(*arguments: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command that runs on; it is ended with the context."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
        cwd=cwd,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def server(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with started("serve", "--port", "0", "--profile", "instant", *arguments) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("agentloop is serving on http://127.0.0.1:"), line
        yield line.split()[-1], process


def wait_until(is_met: Callable[[], bool]) -> None:
    """Look every now and then; what other processes do tells nobody when it is done."""
    for _ in range(TIMEOUT_S * 100):
        if is_met():
            return
        Event().wait(0.01)
    pytest.fail("it did not happen in time")


def script(folder: Path, turns: Sequence[Sequence[object]], name: str = "test") -> None:
    (folder / f"{name}.json").write_bytes(msgspec.json.encode({"turns": turns}))


def shell(cmd: str) -> dict[str, object]:
    return {"call": {"name": "shell", "arguments": {"cmd": cmd}}}


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    report: dict[str, Any] = msgspec.json.decode(done.stdout)
    return report


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "COMMAND"),
        (["dance"], 2, "dance"),
        (["run", "--desig", "hosted"], 2, "--desig"),
        (["run", "--design", "telepathy"], 2, "telepathy"),
        (["run", "--profile", "abacus"], 2, "abacus"),
        (["run", "--url", "nowhere"], 2, "nowhere"),
        (["run", "--seed", "x"], 2, "--seed"),
        (["run", "--workspace", "/nonexistent"], 2, "/nonexistent"),
        (["run", "--trajectory", "/nonexistent.json"], 2, "/nonexistent.json"),
        (["run", "--trajectory", __file__], 2, "test_cli.py"),
        (["run", "--paced"], 2, "--trajectory"),
        (["run", "--record", "/nonexistent/file"], 2, "/nonexistent"),
        (["run", "hello", "--url", "http://127.0.0.1:9"], 1, "127.0.0.1"),
        (["serve", "--port", "70000"], 2, "70000"),
        (["serve", "--profile", "abacus"], 2, "abacus"),
        (["serve", "--script-dir", "/nonexistent"], 2, "/nonexistent"),
        (["serve", "--host", "0.0.0.0"], 2, "keys"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_an_exit_code(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    assert stderr.startswith("agentloop: ")
    assert stderr.count("\n") == 1, stderr
    assert says in stderr


def test_a_bug_is_one_line_that_tells_where_the_details_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Unprintable(list[str]):
        def __iter__(self) -> Iterator[str]:
            raise RuntimeError("a bug\nof two lines")

    assert main(Unprintable()) == 1
    _, stderr = capsys.readouterr()
    assert stderr.startswith("agentloop: internal error (RuntimeError: a bug of two lines); ")
    assert stderr.count("\n") == 1
    details = Path(stderr.split()[-1])
    assert "Traceback" in details.read_text()
    details.unlink()


def test_a_mistake_ends_the_process_with_its_code() -> None:
    done = agentloop("serve", "--until-stdin-closes", "--port", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "agentloop: --until-stdin-closes needs a pipe as standard input\n"


def test_a_workspace_that_holds_something_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = agentloop("run", "--workspace", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is not empty" in done.stderr


def test_a_taken_port_is_one_line() -> None:
    with server() as (url, _):
        done = agentloop("serve", "--port", url.rpartition(":")[2])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot listen" in done.stderr


def test_what_the_server_refuses_is_one_line(tmp_path: Path) -> None:
    with server("--strict-models") as (url, _):
        done = agentloop("run", "hello", "--url", url, "--model", "nobody")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "nobody" in done.stderr


# -- sessions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["ws-append", "hosted"])
def test_the_bundled_task_is_mended(design: str, tmp_path: Path) -> None:
    record, workspace = tmp_path / "frames.jsonl", tmp_path / "workspace"
    workspace.mkdir()
    done = agentloop(
        "run", "--json", "--design", design, "--profile", "instant",
        "--record", str(record), "--workspace", str(workspace),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = report_of(done)
    assert (report["status"], report["problems"], report["design"]) == ("completed", [], design)
    assert report["check"]["has_passed"]
    breakdown = report["breakdown"]
    assert report["turns"] == len(breakdown["turns"]) == breakdown["total"]["turn"]
    assert breakdown["inference"] == "modelled (profile instant)"
    runs_on = {call["name"]: call["runs_on"] for call in report["calls"]}
    assert runs_on["web_search"] == "server"
    assert runs_on["apply_patch"] == ("server" if design == "hosted" else "client")
    assert report["workspace"] == str(workspace)
    frames = [msgspec.json.decode(line) for line in record.read_bytes().splitlines()]
    assert frames[0]["dir"] == "in"
    assert frames[0]["frame"]["type"] == "response.create"
    assert frames[-1]["frame"]["type"] == "response.completed"


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_temporary_workspace_goes_unless_it_is_kept(tmp_path: Path, is_kept: bool) -> None:
    keep = ["--keep"] if is_kept else []
    report = report_of(agentloop("run", "hello", "--json", "--profile", "instant", *keep))
    assert report["problems"] == []
    left = [str(folder / "workspace") for folder in tmp_path.glob("agentloop-*")]
    assert left == ([report["workspace"]] if is_kept else [])


def test_people_see_the_session_and_its_breakdown() -> None:
    done = agentloop("run", "--profile", "instant")
    assert done.returncode == 0, done.stderr
    for shown in (
        "turn 1\n", "▸ shell ", "◂ apply_patch ", "▸ web_search (server) ", "network ms",
        "inference: modelled (profile instant)", "completed: 6 turns, 6 calls", "check passed",
    ):  # fmt: skip
        assert shown in done.stdout
    assert "\x1b" not in done.stdout


def test_an_unmended_task_fails_the_run(tmp_path: Path) -> None:
    done = agentloop("run", "--json", "--profile", "instant", "--model", "sim-echo")
    assert done.returncode == 1
    assert report_of(done)["status"] == "completed"
    assert "no file was changed" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_free_task_on_a_server_elsewhere(tmp_path: Path) -> None:
    script(tmp_path, [[shell("echo hello > made"), shell("true")], [{"text": "made it"}]])
    record, workspace = tmp_path / "frames.jsonl", tmp_path / "workspace"
    workspace.mkdir()
    with server("--script-dir", str(tmp_path)) as (url, _):
        done = agentloop(
            "run", "make a file", "--json", "--url", url, "--model", "sim-script:test",
            "--workspace", str(workspace), "--record", str(record), "--check", "grep hello made",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = report_of(done)
    assert (report["text"], report["turns"], report["history_items"]) == ("made it", 2, 6)
    assert report["check"]["output"] == "hello\n"
    frames = [msgspec.json.decode(line) for line in record.read_bytes().splitlines()]
    sent = [each["frame"]["type"] for each in frames if each["dir"] == "in"]
    assert sent == ["response.create", "response.append", "response.close"]


def test_a_failed_check_fails_the_run(tmp_path: Path) -> None:
    done = agentloop("run", "hello", "--json", "--profile", "instant", "--check", "echo no; false")
    assert done.returncode == 1
    assert done.stderr == "agentloop: the check `echo no; false` failed: no\n"


@pytest.mark.traces
def test_a_recorded_session_has_its_turns_again(shared: Path) -> None:
    recording = shared / "traces/mini-swe-agent/psf__requests-1724.json"
    done = agentloop("run", "--json", "--profile", "instant", "--trajectory", str(recording))
    assert done.returncode == 0, done.stderr
    report = report_of(done)
    assert report["turns"] == msgspec.json.decode(recording.read_bytes())["info"]["api_calls"]
    assert report["calls"][0]["output"].startswith("<returncode>")


# -- the ways to end early -------------------------------------------------------------------------


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
