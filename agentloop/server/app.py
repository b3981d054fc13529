"""The server: HTTP routes and the WebSocket upgrade, over one `Service`."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web
from msgspec import Struct

from agentloop.clock import Clock, WallClock
from agentloop.core.snapshot import snapshot
from agentloop.errors import AgentLoopError, ClientFault, ConfigError, UnknownResponse
from agentloop.journal.memory import MemoryJournal
from agentloop.link.websocket import WebSocketLink, accept
from agentloop.loop.design import Design
from agentloop.serve.connection import Connection
from agentloop.serve.designs import DESIGNS
from agentloop.serve.service import Service
from agentloop.server.assemble import assemble
from agentloop.server.auth import check, is_loopback
from agentloop.server.options import ServerOptions
from agentloop.server.record import Recorder
from agentloop.tokens.vocabulary import warm_up
from agentloop.tools.api import Toolbox
from agentloop.wire import codec, events

log = logging.getLogger(__name__)

SERVICE_RESTART = 1012
_FLAGS = {"responses_websockets=2026-02-04": "append", "responses_multi_agent=v1": "inject"}


class UpgradeRequired(ClientFault):
    """A plain GET where only a WebSocket can be answered."""

    status = 426
    code = "upgrade_required"


class Server(Struct):
    """A running server."""

    url: str
    service: Service


class App:
    """The routes and the links that are open.

    Attributes:
        is_ready: what `/readyz` says.
    """

    def __init__(
        self, options: ServerOptions, service: Service, clock: Clock, recorder: Recorder | None
    ) -> None:
        self._options = options
        self._service = service
        self._clock = clock
        self._recorder = recorder
        self.is_ready = False
        self._links: set[WebSocketLink] = set()

    def make(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/v1/responses", self._responses)
        app.router.add_get("/v1/responses/{id}", self._response)
        app.router.add_get("/v1/responses/{id}/timeline", self._timeline)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.on_shutdown.append(self._say_goodbye)
        return app

    @web.middleware
    async def _guard(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Host and Origin on every request; every fault as the one error envelope."""
        try:
            check(request.headers.get("Host"), request.headers.get("Origin"), self._options)
            return await handler(request)
        except AgentLoopError as fault:
            return _json({"error": events.error_body(fault)}, _status_of(fault))

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        """One link, from its upgrade to its end."""
        design = _design_of(request)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise UpgradeRequired("GET /v1/responses is a WebSocket endpoint; send an upgrade")
        gate = self._service.live.shared.journal.gate
        compresses = self._options.compresses
        link = await accept(request, clock=self._clock, gate=gate, compresses=compresses)
        if self._recorder is not None:
            link.tap = self._recorder.tap()
        self._links.add(link)
        try:
            await Connection(link, self._service, design).run()
        finally:
            self._links.discard(link)
            await link.close()
        return link.response

    async def _response(self, request: web.Request) -> web.StreamResponse:
        response = self._service.live.get(request.match_info["id"]).response
        config, transcript, ended = response.config, response.transcript, response.ended
        if not config.store:
            raise UnknownResponse(f"no Response {config.id!r}", param="response_id")
        shown = snapshot(
            config,
            ended.kind if ended else "in_progress",
            ended=ended,
            output=transcript.items,
            usage=transcript.usage_total,
        )
        return _json(shown)

    async def _timeline(self, request: web.Request) -> web.StreamResponse:
        return _json(self._service.live.get(request.match_info["id"]).timeline)

    async def _livez(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        status, text = (200, "ready\n") if self.is_ready else (503, "not ready\n")
        return web.Response(status=status, text=text)

    async def _say_goodbye(self, app: web.Application) -> None:
        """No new connection comes any more: close every link."""
        self.is_ready = False
        async with asyncio.TaskGroup() as group:
            for link in tuple(self._links):
                group.create_task(link.close(SERVICE_RESTART, "the server is going away"))


def _design_of(request: web.Request) -> Design:
    """The dialect: `?protocol=` first (browsers set no headers), else the beta flag."""
    beta = [flag.strip() for flag in request.headers.get("OpenAI-Beta", "").split(",")]
    flagged = (protocol for flag, protocol in _FLAGS.items() if flag in beta)
    protocol = request.query.get("protocol", next(flagged, ""))
    design = DESIGNS.get(protocol)
    if design is None:
        known = ", ".join(f"?protocol={name}" for name in DESIGNS)
        flags = " or ".join(_FLAGS)
        raise ClientFault(
            f"say which protocol the link speaks: {known}, or the header OpenAI-Beta: {flags}",
            code="unsupported_protocol",
            param="protocol",
        )
    return design


def _status_of(fault: AgentLoopError) -> int:
    """HTTP's own word for an unknown Response; a link's error frame says 400."""
    return 404 if isinstance(fault, UnknownResponse) else fault.status


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=codec.encode(body), status=status, content_type="application/json")


@asynccontextmanager
async def serve(
    options: ServerOptions, *, clock: Clock | None = None, toolbox: Toolbox | None = None
) -> AsyncIterator[Server]:
    """A server for as long as the context lasts.

    Raises:
        ConfigError: an option is wrong, or the address cannot be bound.
    """
    if not is_loopback(options.host):
        raise ConfigError(
            f"refusing to bind {options.host}: beyond loopback a server needs API keys, which it"
            " does not have yet; use --host 127.0.0.1",
            param="host",
        )
    clock = clock or WallClock()
    service = assemble(options, clock, MemoryJournal(), toolbox)
    recorder = Recorder(options.record_path, clock) if options.record_path else None
    app = App(options, service, clock, recorder)
    runner = web.AppRunner(app.make(), access_log=None, handle_signals=False)
    try:
        await runner.setup()
        url = await _bind(runner, options)
        warm_up()
        app.is_ready = True
        with _calm_collector():
            yield Server(url, service)
    finally:
        await runner.cleanup()
        await service.close()
        if recorder is not None:
            recorder.close()


@contextmanager
def _calm_collector() -> Iterator[None]:
    """What start-up made lives as long as the server, and ended Responses are in no cycle: the
    collector finds little but what aiohttp leaves of a connection. Small young generations keep its
    pauses near a millisecond; the oldest one, long where many Responses live, is only looked at
    when it has grown by a quarter (CPython's own rule)."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def _bind(runner: web.AppRunner, options: ServerOptions) -> str:
    site = web.TCPSite(runner, options.host, options.port)
    try:
        await site.start()
    except OSError as error:
        where = f"{options.host}:{options.port}"
        raise ConfigError(f"cannot listen on {where}: {error.strerror}", param="port") from error
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
