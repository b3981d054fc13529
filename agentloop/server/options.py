"""What a server can be told."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class ServerOptions(Struct, frozen=True, kw_only=True):
    """Every option of a server; the defaults are those of `agentloop serve`.

    Attributes:
        port: 0 takes any free one.
        profile: the engine profile of requests that name none.
        script_dirs: where `sim-script:NAME` looks, before the bundled scripts.
        tools_workspace: the folder of the server's own tools; None leaves only `web_search`.
        drives_tools: the seeded agent calls the tools that a client lists.
        is_strict: unknown model names are refused.
        record_path: every frame goes there, as JSON lines.
        keepalive_s: a Response at work says so after this long without an event.
        seed: seeds behaviors and engines of requests that bring no seed.
        is_reproducible: ids come from the seed too; never for a server that others can reach.
        allowed_hosts: names besides loopback that a `Host` header may bear.
        allowed_origins: origins besides the server's own that may open a link.
        compresses: a client's offer to compress its link is accepted. Off because it pays only
            where the network is slow: an event takes 5 to 9 us more to send and what the client
            needs to inflate it, a link takes 62 KiB more, and from the size of what is compressed
            together an eavesdropper can guess at its content.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    profile: str = "spark1000"
    script_dirs: tuple[Path, ...] = ()
    tools_workspace: Path | None = None
    drives_tools: bool = False
    is_strict: bool = False
    record_path: Path | None = None
    keepalive_s: float = 15.0
    seed: int = 0
    is_reproducible: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    compresses: bool = False
