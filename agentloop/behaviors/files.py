"""Behaviors that lie in files: a script or a recorded trajectory, found by a plain name.

A script file is `NAME.json`, in the form of a request's `simulation`:

    {"description": "optional", "turns": [[{"text": "…"}, {"call": {"name": "…"}}], …]}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from agentloop.behaviors.scripted import Scripted
from agentloop.errors import ConfigError, ProtocolError
from agentloop.wire import codec
from agentloop.wire.requests import ScriptedPart

BUNDLED: Final = Path(__file__).with_name("scripts")

_PLAIN_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


class ScriptFile(Struct, forbid_unknown_fields=True, frozen=True):
    """What a script file holds."""

    turns: list[list[ScriptedPart]]
    description: str = ""


_decoder = msgspec.json.Decoder(ScriptFile)


def find(name: str, directories: Iterable[Path], suffixes: Sequence[str]) -> Path | None:
    """The first file `NAME.SUFFIX`; None also for a name that is more than a name."""
    if not _PLAIN_NAME.fullmatch(name):
        return None
    candidates = (folder / f"{name}{suffix}" for folder in directories for suffix in suffixes)
    return next((path for path in candidates if path.is_file()), None)


def load_script(path: Path) -> Scripted:
    """Read a script file.

    Raises:
        ConfigError: the message names the file, the field and what is expected.
    """
    try:
        script = codec.decode_as(_decoder, path.read_bytes(), "script")
        return Scripted(script.turns, "script.turns")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ProtocolError as error:
        raise ConfigError(f"{path}: {error.message}") from error
