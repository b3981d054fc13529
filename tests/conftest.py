"""What every test may rely on: one seed, the recorded data, and a loop that is left tidy."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
from hypothesis import settings

SHARED = Path(__file__).parents[2] / "shared"

settings.register_profile("agentloop", deadline=None, database=None)
settings.load_profile("agentloop")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="seed of every random choice (default 0)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give hypothesis our seed, so that one number reproduces a run; say all of it in a log."""
    if os.environ.get("CI"):
        config.option.verbose = max(config.option.verbose, 0)
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(config.getoption("--seed"))  # 0 counts as none


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('--seed')}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("seed", f"--seed={item.config.getoption('--seed')}"))
    return report


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run; every random choice of a test derives from it."""
    chosen: int = request.config.getoption("--seed")
    return chosen


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded traces and captures beside the repository."""
    if not SHARED.is_dir():
        missing = f"no recorded data at ../{SHARED.name}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return SHARED


@pytest.fixture(autouse=True)
def _tidy_loop_if_async(request: pytest.FixtureRequest) -> None:
    """Watch the loop of asynchronous tests; a synchronous test does not pay for a loop."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("tidy_loop")


@pytest.fixture
async def tidy_loop() -> AsyncIterator[None]:
    """Fail a test that leaves a task running or an exception that nobody retrieved."""
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(repr(context)))
    yield
    for _ in range(3):  # cancelled tasks end, and closed transports call back, in the next rounds
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left running: {left}"
    assert not complaints, f"nobody handled: {complaints}"
