"""`agentloop serve`: a server, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, Any

from agentloop import config
from agentloop.errors import ConfigError
from agentloop.server.app import serve
from agentloop.server.options import ServerOptions

if TYPE_CHECKING:
    import argparse

SERVING = "agentloop is serving on "  # and the URL: others wait for this line

_STDIN = 0


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve", help="serve the Responses API on this machine", description=__doc__
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to bind (default %(default)s)")
    add("--port", type=config.port, default=8765, help="0 takes any free one (default %(default)s)")
    add("--profile", default="spark1000", help="engine timing (default %(default)s)")
    add("--script-dir", type=config.existing_folder, action="append", default=[], metavar="DIR",
        help="where sim-script:NAME is looked for first; may be repeated")  # fmt: skip
    add("--tools-workspace", type=config.existing_folder, metavar="DIR",
        help="let the server run tools itself, in this folder (design hosted)")  # fmt: skip
    add("--drive-tools", action="store_true", help="the default agent calls a client's tools")
    add("--strict-models", action="store_true", help="refuse unknown model names")
    add("--record", type=config.new_file, metavar="FILE", help="write every frame as a JSON line")
    add("--keepalive-s", type=config.seconds, default=15.0, metavar="S",
        help="say that a silent Response is at work this often (default %(default)g)")  # fmt: skip
    add("--seed", type=config.seed, default=0,
        help="seed of behaviors and engines (default %(default)s)")  # fmt: skip
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="a Host header to accept besides loopback's; may be repeated")  # fmt: skip
    add("--allow-origin", action="append", default=[], metavar="ORIGIN",
        help="a browser's origin to accept besides the server's own; may be repeated")  # fmt: skip
    add("--compress", action="store_true",
        help="accept a client's offer to compress its link: for slow networks")  # fmt: skip
    add("--memory", action="store_true", help="keep everything in memory (the default)")
    add("--until-stdin-closes", action="store_true",
        help="end with whoever holds the other end of standard input")  # fmt: skip
    parser.set_defaults(command=run)


async def run(options: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM, then end cleanly."""
    logging.basicConfig(format="agentloop: %(levelname)s %(name)s: %(message)s")
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with serve(_server_options(options)) as server:
        if options.until_stdin_closes:
            _watch_stdin(loop, stopped)
        print(f"{SERVING}{server.url}", flush=True)
        await stopped.wait()
    return 0


def _server_options(options: argparse.Namespace) -> ServerOptions:
    return ServerOptions(
        host=options.host,
        port=options.port,
        profile=options.profile,
        script_dirs=tuple(options.script_dir),
        tools_workspace=options.tools_workspace,
        drives_tools=options.drive_tools,
        is_strict=options.strict_models,
        record_path=options.record,
        keepalive_s=options.keepalive_s,
        seed=options.seed,
        allowed_hosts=tuple(options.allow_host),
        allowed_origins=tuple(options.allow_origin),
        compresses=options.compress,
    )


def _watch_stdin(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    def look() -> None:
        if not os.read(_STDIN, 4096):
            loop.remove_reader(_STDIN)
            stopped.set()

    try:
        loop.add_reader(_STDIN, look)
    except OSError as error:
        raise ConfigError("--until-stdin-closes needs a pipe as standard input") from error
