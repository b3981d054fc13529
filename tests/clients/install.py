"""Installs the real clients that the tests beside this file run: `python install.py [DIR]`.

    DIR/NAME-VERSION/        whole as soon as it stands there: made beside, then renamed
    DIR/NAME-VERSION/made-of what it was made of; where CLIENTS says otherwise, it is made anew

DIR is $AGENTLOOP_CLIENTS where that is set, else agentloop/clients in the user's cache. Imports
nothing that is not part of Python, so that any Python can run it before all else.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

COMMAND_TIMEOUT_S = 900
MADE_OF = "made-of"

# What openai-agents asks for itself is pinned too: it decides what goes over the wire.
_OPENAI_AGENTS = (
    "openai-agents==0.24.0", "openai==3.57.0", "websockets==16.1.1", "httpx2==2.16.2",
    "pydantic==2.14.4", "mcp==2.3.0", "griffelib==2.4.1",
)  # fmt: skip


class InstallError(Exception):
    """A client could not be installed; the message says why."""


def npm(folder: Path, packages: Sequence[str]) -> list[list[str]]:
    """The commands that put npm packages into a folder."""
    if shutil.which("npm") is None:
        raise InstallError("npm is missing; install Node.js with npm (apt-get install npm)")
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    return [["npm", "install", f"--prefix={folder}", "--ignore-scripts", *quiet, *packages]]


def pip(folder: Path, packages: Sequence[str]) -> list[list[str]]:
    """The commands that make a virtual environment with packages."""
    install = [f"{folder}/bin/python", "-m", "pip", "install", "-qq", *packages]
    return [[sys.executable, "-m", "venv", str(folder)], install]


class Client(NamedTuple):
    """A client: what it is made of, by what, its program, and arguments that this answers."""

    install: Callable[[Path, Sequence[str]], list[list[str]]]
    packages: Sequence[str]
    program: str
    trial: Sequence[str]


CLIENTS = {
    "codex-0.107.0": Client(
        npm, ["@openai/codex@0.107.0"], "node_modules/.bin/codex", ["--version"]
    ),
    "openai-agents-0.24.0": Client(pip, _OPENAI_AGENTS, "bin/python", ["-c", "import agents"]),
}


def default_folder() -> Path:
    """Where clients are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = os.environ.get("AGENTLOOP_CLIENTS") or f"{cache}/agentloop/clients"
    return Path(chosen).expanduser().absolute()


def program_of(name: str, folder: Path | None = None) -> Path | None:
    """The program of an installed client; None where it is not installed, or not as CLIENTS says.

    Args:
        name: a key of CLIENTS.
        folder: where clients are kept.
    """
    client = CLIENTS[name]
    home = (folder or default_folder()) / name
    program, made_of = home / client.program, home / MADE_OF
    is_whole = program.exists() and made_of.is_file() and made_of.read_text() == _made_of(client)
    return program if is_whole else None


def install(name: str, folder: Path) -> Path:
    """Install a client where it is not, and return its program.

    Raises:
        InstallError: a command failed or is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder):
        return program_of(name, folder) or _make(name, folder)


def _make(name: str, folder: Path) -> Path:
    client = CLIENTS[name]
    for left in folder.glob(f".{name}-*"):  # by an installer that was killed
        shutil.rmtree(left)
    with TemporaryDirectory(prefix=f".{name}-", dir=folder) as scratch:
        made = Path(scratch) / name
        for command in client.install(made, client.packages):
            _run(command)
        _run([str(made / client.program), *client.trial])  # npm is content without the binary
        (made / MADE_OF).write_text(_made_of(client))
        shutil.rmtree(folder / name, ignore_errors=True)
        made.rename(folder / name)
    return folder / name / client.program


def _made_of(client: Client) -> str:
    return "".join(f"{package}\n" for package in client.packages)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One installer at a time; the system lets go of the lock however the process ends."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"`{' '.join(command)}` failed: {error}") from error
    if done.returncode:
        raise InstallError(f"`{' '.join(command)}` failed:\n{done.stdout.strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Install all clients; one line for each that was made."""
    parser = argparse.ArgumentParser(description="Install the real clients that the tests run.")
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder(), metavar="DIR",
                        help="where to (default: %(default)s)")  # fmt: skip
    folder = parser.parse_args(arguments).folder.absolute()
    for name in CLIENTS:
        try:
            if program_of(name, folder) is None:
                print(f"installed {install(name, folder)}", flush=True)
        except (InstallError, OSError) as error:
            print(f"install.py: {name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
