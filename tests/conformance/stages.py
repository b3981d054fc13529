"""Where transcripts are played: over a memory link, and over real WebSockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentloop.clock import Clock
from agentloop.journal.memory import MemoryJournal
from agentloop.link.api import Link
from agentloop.link.memory import memory_pair
from agentloop.link.websocket import connect
from agentloop.serve.connection import Connection
from agentloop.serve.designs import DESIGNS
from agentloop.server.app import serve
from agentloop.server.assemble import assemble
from agentloop.server.options import ServerOptions
from agentloop.tools.api import Durability, Toolbox
from agentloop.wire.items import FunctionTool
from tests.conformance.runner import World


class SlowTool:
    """A tool of the server that does nothing, for a while."""

    kind: Durability = "pure"

    def __init__(self, name: str, duration_s: float, clock: Clock) -> None:
        self.name = name
        self.definition = FunctionTool(name=name, parameters={"type": "object"})
        self._duration_s = duration_s
        self._clock = clock

    async def run(self, arguments: dict[str, object]) -> str:
        await self._clock.sleep(self._duration_s)
        return f"what {self.name} found"


def toolbox_of(hosted: dict[str, float], clock: Clock) -> Toolbox:
    return Toolbox([SlowTool(name, duration_s, clock) for name, duration_s in hosted.items()])


@asynccontextmanager
async def in_memory(
    options: ServerOptions, hosted: dict[str, float], clock: Clock
) -> AsyncIterator[World]:
    journal = MemoryJournal()
    service = assemble(options, clock, journal, toolbox_of(hosted, clock))
    links: list[Link] = []

    async with asyncio.TaskGroup() as group:

        async def open(protocol: str) -> Link:
            theirs, ours = memory_pair(clock, journal.gate)
            design = DESIGNS[protocol]
            group.create_task(_run(Connection(theirs, service, design), theirs))
            links.append(ours)
            return ours

        try:
            yield World(service, open)
        finally:
            for link in links:
                await link.close()
    await service.close()


async def _run(connection: Connection, link: Link) -> None:
    try:
        await connection.run()
    finally:
        await link.close()


@asynccontextmanager
async def on_websockets(
    options: ServerOptions, hosted: dict[str, float], clock: Clock
) -> AsyncIterator[World]:
    links: list[Link] = []
    async with serve(options, clock=clock, toolbox=toolbox_of(hosted, clock)) as server:
        url = f"ws{server.url.removeprefix('http')}/v1/responses?protocol="

        async def open(protocol: str) -> Link:
            links.append(await connect(url + protocol, clock=clock))
            return links[-1]

        try:
            yield World(server.service, open)
        finally:
            for link in links:
                await link.close()
