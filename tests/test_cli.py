"""The command as a user runs it: a process, its output, its exit code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentloop.cli import main
from tests.cli_kit import agentloop, report_of, script, server, shell


@pytest.fixture(autouse=True)
def _temporary_folders_within_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


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
        (["run", "--seed", "x"], 2, "is no seed"),
        (["run", "--seed", "9" * 5_000], 2, "within 64 bits"),
        (["serve", "--seed", "9" * 5_000], 2, "within 64 bits"),
        (["run", ""], 2, "TASK is empty"),
        (["run", "hello", "--check", " "], 2, "--check is empty"),
        (["run", "--url", "http://..:1"], 2, "label"),
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
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
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


def test_what_a_check_says_is_shown_without_its_escapes() -> None:
    check = r"printf 'r\033[31med\007'; false"
    done = agentloop("run", "hello", "--json", "--profile", "instant", "--check", check)
    assert done.stderr.endswith("failed: red\n")


def test_a_record_that_stops_is_told_with_a_server_elsewhere() -> None:
    with server() as (url, _):
        done = agentloop("run", "hello", "--json", "--url", url, "--record", "/dev/full")
    said = "recording to /dev/full stopped: No space left on device"
    assert (done.returncode, done.stderr) == (1, f"agentloop: {said}\n")
    assert report_of(done)["problems"] == [said]


def lines_of(record: Path) -> list[Any]:
    return [msgspec.json.decode(line) for line in record.read_bytes().splitlines()]


@pytest.mark.traces
def test_a_recorded_session_has_its_turns_again(shared: Path, tmp_path: Path) -> None:
    recording = shared / "traces/mini-swe-agent/psf__requests-1724.json"
    record = tmp_path / "frames.jsonl"
    options = ["--profile", "instant", "--trajectory", str(recording), "--record", str(record)]
    done = agentloop("run", "--json", *options)
    assert done.returncode == 0, done.stderr
    report = report_of(done)
    assert report["turns"] == msgspec.json.decode(recording.read_bytes())["info"]["api_calls"]
    turns = [turn["turn"] for turn in report["breakdown"]["turns"]]
    assert [call["turn"] for call in report["calls"]] == turns[:-1]
    sent = [line["frame"]["type"] for line in lines_of(record) if line["dir"] == "in"]
    assert sent == ["response.create", *["response.append"] * len(turns[:-1]), "response.close"]
    assert report["calls"][0]["output"].startswith("<returncode>")
