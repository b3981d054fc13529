"""The installed clients. Every test in this folder is marked `clients`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.clients_kit import installed


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("clients")


@pytest.fixture(scope="session")
def codex_append() -> Path:
    """The command of the last Codex that appends."""
    return installed("codex-0.107.0")


@pytest.fixture(scope="session")
def openai_agents() -> Path:
    """The Python of an environment that holds openai-agents."""
    return installed("openai-agents-0.24.0")
