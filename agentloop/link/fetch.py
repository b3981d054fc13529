"""One GET: what a client asks of a server beside its link."""

from __future__ import annotations

import asyncio

import aiohttp

from agentloop.errors import LinkClosed

_BODY_BYTES_MAX = 64 << 20


async def fetch(url: str, *, timeout_s: float = 10.0) -> bytes:
    """The body of a 200 answer.

    Raises:
        LinkClosed: there is no server, it answered otherwise (`status` says how), too late, or
            with more than 64 MiB.
    """
    try:
        async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
            async with session.get(url, allow_redirects=False) as response:
                body = await response.content.read(_BODY_BYTES_MAX + 1)
                while not response.content.at_eof() and len(body) <= _BODY_BYTES_MAX:
                    body += await response.content.read(_BODY_BYTES_MAX + 1)
                status = response.status
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise LinkClosed(f"cannot get {url}: {str(error) or type(error).__name__}") from error
    if status != 200 or len(body) > _BODY_BYTES_MAX:
        closed = LinkClosed(f"{url} answered with HTTP status {status}, {len(body)} bytes")
        closed.status = status
        raise closed
    return body
