"""Who may speak to the server: `Host` and `Origin` are checked on every request.

A browser lets any page open a WebSocket to loopback, so an unknown origin is refused; a foreign
name that resolves to loopback (DNS rebinding) is refused by its `Host`.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from agentloop.errors import ClientFault
from agentloop.server.options import ServerOptions

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Refused(ClientFault):
    """This `Host` or `Origin` may not."""

    status = 403
    code = "forbidden"


def check(host: str | None, origin: str | None, options: ServerOptions) -> None:
    """Raises Refused unless this `Host` and `Origin` may speak to the server."""
    name = _name_of(f"//{host or ''}")
    if name not in _LOOPBACK and name not in options.allowed_hosts:
        raise Refused(f"the host {name!r} is not allowed here", param="host")
    if origin is None or origin in options.allowed_origins:
        return
    if origin not in (f"http://{host}", f"https://{host}"):
        raise Refused(f"the origin {origin!r} is not allowed here", param="origin")


def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # an unfinished IPv6 address
        return None


def is_loopback(host: str) -> bool:
    """Whether a bind address reaches this machine only."""
    return host in _LOOPBACK or host.startswith("127.")
