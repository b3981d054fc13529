"""One GET: what a client asks of a server beside its link."""

from __future__ import annotations

import asyncio

import aiohttp

from agentloop.errors import LinkClosed

_BODY_BYTES_MAX = 64 << 20


async def fetch(url: str, *, timeout_s: float = 10.0) -> bytes:
    """The body of a 200 answer.

    Raises:
        LinkClosed: there is no server, or it answered otherwise (`status` says how), too late, or
            with more than 64 MiB.
    """
    body = bytearray()
    try:
        async with (
            asyncio.timeout(timeout_s),
            aiohttp.ClientSession() as session,
            session.get(url, allow_redirects=False) as response,
        ):
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > _BODY_BYTES_MAX:
                    raise LinkClosed(f"{url} answers with more than {_BODY_BYTES_MAX} bytes")
    except (aiohttp.ClientError, OSError, UnicodeError) as error:  # the last: a host is no name
        raise LinkClosed(f"cannot get {url}: {str(error) or type(error).__name__}") from error
    if response.status != 200:
        refused = LinkClosed(f"{url} answered with HTTP status {response.status}")
        refused.status = response.status
        raise refused
    return bytes(body)
