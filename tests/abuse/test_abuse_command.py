"""The command line under bad conditions: one line, the right exit code, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "agentloop"]
TIMEOUT_S = 60


def agentloop(*arguments: str, shell_suffix: str = "", tmp: Path) -> tuple[int, str]:
    """Exit code and standard error. The suffix is a redirection, as a shell writes it."""
    script = f'exec "$@" {shell_suffix}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp)},
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("host", ["a" * 80 + ".com", ".."], ids=["long label", "empty label"])
def test_host_that_is_no_name_is_one_plain_line(tmp_path: Path, host: str) -> None:
    code, said = agentloop("run", "--url", f"http://{host}:1", tmp=tmp_path)
    assert code in (1, 2)
    assert "internal error" not in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-"])
def test_run_without_a_standard_stream_does_not_abort(tmp_path: Path, closed: str) -> None:
    code, said = agentloop("run", "--profile=instant", "hello", shell_suffix=closed, tmp=tmp_path)
    assert code == 0, said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_behind_stdout_is_no_internal_error(tmp_path: Path) -> None:
    code, said = agentloop("run", "hello", shell_suffix=">/dev/full", tmp=tmp_path)
    assert code == 1
    assert "No space left on device" in said
    assert "internal error" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_behind_the_record_is_named(tmp_path: Path) -> None:
    code, said = agentloop("run", "--record", "/dev/full", "hello", tmp=tmp_path)
    assert code in (0, 1)  # the session may go on, but its user is told
    assert "/dev/full" in said
    assert len(said.splitlines()) == 1
