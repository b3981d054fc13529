from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentloop.errors import LinkClosed
from agentloop.link.fetch import fetch


async def _answer(request: web.Request) -> web.Response:
    return web.Response(body=b'{"a": 1}', status=int(request.query["status"]))


async def test_a_host_that_is_no_name_is_no_server() -> None:
    with pytest.raises(LinkClosed, match="cannot get"):
        await fetch("http://..:1")


async def test_a_body_and_a_refusal() -> None:
    app = web.Application()
    app.router.add_get("/x", _answer)
    async with TestServer(app) as server:
        assert await fetch(str(server.make_url("/x?status=200"))) == b'{"a": 1}'
        with pytest.raises(LinkClosed, match="HTTP status 404") as caught:
            await fetch(str(server.make_url("/x?status=404")))
        gone = str(server.make_url("/x?status=200"))
    assert caught.value.status == 404
    with pytest.raises(LinkClosed, match="cannot get"):
        await fetch(gone)
