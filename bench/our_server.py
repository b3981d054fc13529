"""The server under test, as its own process (`python -m bench.our_server`): profile `instant`,
records in memory."""

from __future__ import annotations

import argparse
import asyncio
import signal

import uvloop

from agentloop.server.app import serve
from agentloop.server.options import ServerOptions


async def run(port: int) -> None:
    """Serve until the process is asked to end."""
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    async with serve(ServerOptions(port=port, profile="instant")) as server:
        print(server.url, flush=True)
        await terminated.wait()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m bench.our_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(run(parser.parse_args().port))


if __name__ == "__main__":
    main()
