"""Any page in a browser can open a WebSocket to loopback: `Host` and `Origin` decide who may."""

from __future__ import annotations

import pytest

from agentloop.errors import LinkClosed
from tests.server.server_kit import CREATE, Client, hear, run, say

EVIL = "http://evil.example"
PATHS = ["/livez", "/readyz", "/v1/responses?protocol=append", "/v1/responses/resp_x", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"Origin": EVIL}, "origin"),
        ({"Origin": "null"}, "origin"),
        ({"Origin": "http://127.0.0.1:1"}, "origin"),
        ({"Origin": "http://["}, "origin"),
        ({"Host": "evil.example"}, "host"),
        ({"Host": "127.0.0.1.evil.example:80"}, "host"),
        ({"Host": "evil.example", "Origin": EVIL}, "host"),
        ({"Host": "["}, "host"),
        ({"Host": ""}, "host"),
    ],
    ids=lambda value: "+".join(map(": ".join, value.items())) if isinstance(value, dict) else "",
)
def test_foreign_names_are_refused(path: str, headers: dict[str, str], param: str) -> None:
    async def main(client: Client) -> None:
        status, body = await client.get(path, headers)
        assert status == 403
        assert body["error"]["code"] == "forbidden"
        assert body["error"]["param"] == param
        assert set(body["error"]) == {"type", "code", "message", "param"}

    run(main)


def test_evil_page_opens_no_link() -> None:
    async def main(client: Client) -> None:
        with pytest.raises(LinkClosed) as refused:
            await client.connect(headers={"Origin": EVIL})
        assert refused.value.status == 403

    run(main)


def test_own_page_opens_a_link() -> None:
    async def main(client: Client) -> None:
        link = await client.connect(headers={"Origin": client.server.url})
        say(link, CREATE)
        await hear(link, "response.done")
        await link.close()

    run(main)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:99", "[::1]:99"])
def test_loopback_has_several_names(host: str) -> None:
    async def main(client: Client) -> None:
        assert (await client.get("/livez", {"Host": host}))[0] == 200

    run(main)


def test_lists_let_others_in() -> None:
    async def main(client: Client) -> None:
        host = {"Host": "agents.example:443"}
        assert (await client.get("/livez", host))[0] == 200
        assert (await client.get("/livez", {"Origin": "https://page.example"}))[0] == 200
        assert (await client.get("/livez", {"Origin": "http://page.example"}))[0] == 403
        own = {**host, "Origin": "https://agents.example:443"}
        assert (await client.get("/livez", own))[0] == 200
        link = await client.connect(headers={"Origin": "https://page.example"})
        await link.close()

    run(
        main,
        allowed_hosts=("agents.example",),
        allowed_origins=("https://page.example",),
    )
