"""One agent session through a whole night, in virtual time; a seed says everything about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.virtual_night import night

ROOT = Path(__file__).parents[2]


def test_session_of_thousands_of_turns_lasts_the_night() -> None:
    played = night(turns=5_000, hours=8.0, seed=1)
    assert played.turns >= 5_000
    assert 8.0 <= played.virtual_s / 3600 < 8.1
    assert played.links > 1
    assert played.status == "completed"


def test_same_seed_says_the_same_and_another_one_does_not() -> None:
    first, again, other = (night(turns=150, hours=0.5, seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert first.records_hash != other.records_hash


def run_apart(hash_seed: str) -> list[str]:
    command = ["--turns=150", "--hours=0.5", "--seed=7"]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.virtual_night", *command],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [line for line in ran.stdout.splitlines() if not line.startswith("real")]


def test_no_order_comes_from_hashes_of_strings() -> None:
    assert run_apart("1") == run_apart("2")
    assert any(night(150, 0.5, 7).records_hash in line for line in run_apart("3"))
