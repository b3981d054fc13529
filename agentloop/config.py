"""Options as the user wrote them, checked: every mistake is a `ConfigError` that names the fix."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from agentloop.errors import ConfigError

_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


def base_url(text: str) -> str:
    """A server's base URL: `ws` counts as `http`, and a path `/v1` may be there or not.

    Raises:
        ConfigError: it is no such URL.
    """
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # refuses labels that are empty or too long
    except ValueError as error:
        raise ConfigError(f"{text!r} is no URL: {error}") from error
    if parts.scheme not in _SCHEMES or not has_host or parts.query or parts.fragment:
        raise ConfigError(f"{text!r} is no server URL; write it as http://127.0.0.1:8765")
    path = parts.path.rstrip("/").removesuffix("/responses").removesuffix("/v1")
    return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{path}"


def existing_file(text: str) -> Path:
    """The absolute path of a file.

    Raises:
        ConfigError: there is none.
    """
    path = _existing(text)
    if not path.is_file():
        raise ConfigError(f"{text!r} is no file; give the path of a file")
    return path


def existing_folder(text: str) -> Path:
    """The absolute path of a folder.

    Raises:
        ConfigError: there is none.
    """
    path = _existing(text)
    if not path.is_dir():
        raise ConfigError(f"{text!r} is no folder; give the path of a folder")
    return path


def _existing(text: str) -> Path:
    try:
        return Path(text).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{text!r} cannot be opened: {reason}") from error


def new_file(text: str) -> Path:
    """The absolute path of a file that can be written; its folder exists.

    Raises:
        ConfigError: the folder does not exist, or a folder stands there.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        raise ConfigError(f"{text!r} is a folder; give the path of a file")
    return existing_folder(str(path.parent)) / path.name


def port(text: str) -> int:
    """A TCP port; 0 stands for any free one.

    Raises:
        ConfigError: it is none.
    """
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise ConfigError(f"{text!r} is no port; give a number from 0 to 65535")
    return int(text)


def seed(text: str) -> int:
    """A seed, as wide as the wire carries it: 64 bits with their sign.

    Raises:
        ConfigError: it is none.
    """
    with suppress(ValueError):  # which Python also raises for thousands of digits
        if -(2**63) <= (value := int(text)) < 2**63:
            return value
    raise ConfigError(f"{text!r} is no seed; give a whole number within 64 bits")


def seconds(text: str) -> float:
    """A duration above zero.

    Raises:
        ConfigError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise ConfigError(f"{text!r} is no duration; give seconds above zero")
    return value
