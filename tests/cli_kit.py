"""The command as a process, and what it needs around it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

COMMAND = [sys.executable, "-m", "agentloop"]
TIMEOUT_S = 60


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
