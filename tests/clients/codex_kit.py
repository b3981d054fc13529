"""Codex as a process: `codex app-server`, one thread, user turn after user turn.

It speaks JSON lines over its standard streams: requests with an `id`, answers with that `id`, and
notifications. All that is heard is kept, so that no wait can miss what came before it.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from agentloop.cli.codex_config import config_toml
from tests.clients.clients_kit import TIMEOUT_S, Message, process

NOWHERE = "http://127.0.0.1:9"  # nobody listens there

# Codex asks for parallel calls only of a model that a catalog says can make them.
PARALLEL_MODEL = {
    "slug": "sim-script:test",
    "supports_parallel_tool_calls": True,
    "shell_type": "unified_exec",
    "display_name": "simulated",
    "description": "simulated",
    "base_instructions": "Use the tools.",
    "context_window": 272_000,
    "truncation_policy": {"mode": "tokens", "limit": 10_000},
    "input_modalities": ["text"],
    "supported_in_api": True,
    "visibility": "list",
    "priority": 0,
    "upgrade": None,
    "availability_nux": None,
    "apply_patch_tool_type": None,
    "experimental_supported_tools": [],
    "supports_reasoning_summaries": False,
    "default_reasoning_level": None,
    "supported_reasoning_levels": [],
    "support_verbosity": False,
    "default_verbosity": None,
    "prefer_websockets": False,
}


class UserTurn(NamedTuple):
    """A user turn as Codex itself reports it when it is over: its status, the assistant's texts."""

    status: str
    texts: list[str]


class Codex:
    """A running Codex with one open thread."""

    def __init__(self, server: Process, log: Path) -> None:
        self._server = server
        self._log = log
        self._heard: list[Message] = []
        self._request_count = 0
        self._thread_id = ""

    async def open(self, workspace: Path, model: str) -> None:
        """Greet and open the thread. Tools work in the workspace, unasked and unconfined."""
        client = {"name": "agentloop-tests", "version": "1"}
        await self._request("initialize", clientInfo=client)
        await self._send({"method": "initialized"})
        opened = await self._request(
            "thread/start",
            cwd=str(workspace),
            model=model,
            approvalPolicy="never",
            sandbox="danger-full-access",
        )
        self._thread_id = opened["thread"]["id"]

    async def say(self, text: str, model: str | None = None) -> UserTurn:
        """A whole user turn."""
        return await self.over(await self.start(text, model))

    async def start(self, text: str, model: str | None = None) -> str:
        """Start a user turn and return its id.

        Args:
            model: asked for from now on; None keeps the last one.
        """
        said = [{"type": "text", "text": text}]
        begun = await self._request("turn/start", threadId=self._thread_id, input=said, model=model)
        turn_id: str = begun["turn"]["id"]
        return turn_id

    async def interrupt(self, turn_id: str) -> UserTurn:
        """Interrupt a user turn, and return what it came to."""
        await self._request("turn/interrupt", threadId=self._thread_id, turnId=turn_id)
        return await self.over(turn_id)

    async def over(self, turn_id: str) -> UserTurn:
        """Wait for a user turn's end."""
        ended = await self.notified("turn/completed", turn_id)
        completed = (each["params"] for each in self.heard("item/completed"))
        texts = [
            params["item"]["text"]
            for params in completed
            if params["turnId"] == turn_id and params["item"]["type"] == "agentMessage"
        ]
        return UserTurn(ended["turn"]["status"], texts)

    async def notified(self, method: str, turn_id: str, kind: str | None = None) -> Message:
        """Wait for a notification of a user turn, and return its parameters.

        Args:
            kind: the type of the item that it is about.
        """

        def is_meant(heard: Message) -> bool:
            if heard.get("method") != method:
                return False
            params = heard["params"]
            is_of_turn = turn_id in (params.get("turnId"), params.get("turn", {}).get("id"))
            return is_of_turn and (kind is None or params["item"]["type"] == kind)

        params: Message = (await self._hear(is_meant))["params"]
        return params

    def heard(self, method: str) -> list[Message]:
        """All notifications of a method so far."""
        return [heard for heard in self._heard if heard.get("method") == method]

    async def _request(self, method: str, **params: Any) -> Message:
        self._request_count += 1
        number = self._request_count
        await self._send({"id": number, "method": method, "params": params})
        answer = await self._hear(lambda heard: "method" not in heard and heard["id"] == number)
        assert "result" in answer, answer
        result: Message = answer["result"]
        return result

    async def _send(self, message: Message) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(msgspec.json.encode(message) + b"\n")
        async with asyncio.timeout(TIMEOUT_S):
            await self._server.stdin.drain()

    async def _hear(self, is_meant: Callable[[Message], bool]) -> Message:
        for heard in self._heard:
            if is_meant(heard):
                return heard
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not is_meant(heard := await self._next()):
                    pass
        except TimeoutError:
            pytest.fail(f"Codex hangs; the last that it said: {self._heard[-5:]}")
        return heard

    async def _next(self) -> Message:
        assert self._server.stdout is not None
        line = await self._server.stdout.readline()
        if not line:
            pytest.fail(f"Codex has ended: {self._log.read_text()}")
        heard: Message = msgspec.json.decode(line)
        self._heard.append(heard)
        return heard


def make_home(folder: Path, url: str) -> Path:
    """A folder for `$CODEX_HOME` whose configuration is the one that we print."""
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(config_toml(url))
    return home


def environment(home: Path) -> dict[str, str]:
    """All that Codex gets to know. Whom it would call outside, it looks for where nobody is."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CODEX_HOME": str(home),
        "AGENTLOOP_KEY": "any",
        "HTTP_PROXY": NOWHERE,
        "HTTPS_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1",
    }


@asynccontextmanager
async def codex(
    command: Path, home: Path, workspace: Path, *options: str, model: str
) -> AsyncIterator[Codex]:
    """Codex with an open thread."""
    log = home / "stderr.log"
    serve = ["app-server", *options]
    async with process(
        command, *serve, cwd=workspace, log=log, environment=environment(home)
    ) as server:
        running = Codex(server, log)
        await running.open(workspace, model)
        yield running
