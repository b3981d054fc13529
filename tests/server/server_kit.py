"""A real server in virtual time, and what clients send it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec

from agentloop.clock import Clock, run_virtual
from agentloop.errors import LinkClosed
from agentloop.link.api import DEFAULT_LIMITS, LinkLimits
from agentloop.link.websocket import WebSocketLink, connect
from agentloop.server.app import Server, serve
from agentloop.server.options import ServerOptions
from tests.conformance.stages import toolbox_of

CREATE: dict[str, Any] = {
    "type": "response.create",
    "model": "sim",
    "input": "go",
    "tools": [{"type": "function", "name": "shell"}],
    "simulation": {"turns": [[{"call": {"name": "shell"}}]]},
}


class Client(NamedTuple):
    """A server that runs, and a browserless way to it."""

    server: Server
    clock: Clock
    http: aiohttp.ClientSession

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Status and body, decoded where it is JSON."""
        async with self.http.get(self.server.url + path, headers=headers) as response:
            body = await response.read()
            is_json = response.content_type == "application/json"
            return response.status, msgspec.json.decode(body) if is_json else body.decode()

    async def connect(
        self,
        query: str = "?protocol=append",
        headers: Mapping[str, str] | None = None,
        limits: LinkLimits = DEFAULT_LIMITS,
    ) -> WebSocketLink:
        url = f"ws{self.server.url.removeprefix('http')}/v1/responses{query}"
        return await connect(url, clock=self.clock, headers=headers, limits=limits)


def say(link: WebSocketLink, message: dict[str, Any]) -> None:
    link.send([msgspec.json.encode(message)])


async def hear(link: WebSocketLink, *types: str) -> Any:
    """The next event of one of these types."""
    while True:
        event = msgspec.json.decode(await link.recv())
        if event["type"] in types:
            return event


async def hear_end(link: WebSocketLink) -> LinkClosed:
    """How the link ends, whatever is said before."""
    try:
        while True:
            await link.recv()
    except LinkClosed as closed:
        return closed


@asynccontextmanager
async def serving(clock: Clock, **options: Any) -> AsyncIterator[Client]:
    chosen = ServerOptions(**{"port": 0, "profile": "instant", **options})
    async with (
        serve(chosen, clock=clock, toolbox=toolbox_of({"web_search": 0.0}, clock)) as server,
        aiohttp.ClientSession() as http,
    ):
        yield Client(server, clock, http)


def run(main: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Run a test against a server of its own, in virtual time."""

    async def served(clock: Clock) -> None:
        async with serving(clock, **options) as client:
            await main(client)

    run_virtual(served)
