"""Whether a process group still runs."""

from __future__ import annotations

import os
import signal
from subprocess import PIPE, Popen

import pytest

from agentloop.tools.process_group import is_group_running, signal_group


@pytest.fixture
def sleeper():
    with Popen(["sleep", "1000"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_group_runs_until_its_last_member_has_ended(sleeper: Popen[bytes]) -> None:
    assert is_group_running(sleeper.pid)
    assert signal_group(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert signal_group(sleeper.pid, 0), "ended, not collected: still a member"
    assert not is_group_running(sleeper.pid)
    sleeper.wait()
    assert not signal_group(sleeper.pid, 0)
    assert not is_group_running(sleeper.pid)


def test_a_member_counts_after_the_leader_has_ended() -> None:
    with Popen(["sh", "-c", "sleep 1000 & echo"], start_new_session=True, stdout=PIPE) as process:
        process.wait()
        assert is_group_running(process.pid)
        signal_group(process.pid, signal.SIGKILL)


def test_a_group_that_never_was_is_not_there() -> None:
    assert not signal_group(2**22 + 1, 0)
