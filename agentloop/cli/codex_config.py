"""`agentloop codex-config`: the configuration that points Codex at a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentloop import config
from agentloop.errors import ConfigError
from agentloop.wire import codec

if TYPE_CHECKING:
    import argparse

DEFAULT_URL = "http://127.0.0.1:8765"  # where `agentloop serve` is without options

_APPEND = """\
# Codex CLI 0.100 to 0.107 at an agentloop server: each user turn and each tool output appends to
# one Response. Newer Codex versions do not speak this protocol.
#
#   mkdir -p ~/.codex-agentloop
#   agentloop codex-config > ~/.codex-agentloop/config.toml
#   agentloop serve --drive-tools
#   CODEX_HOME=~/.codex-agentloop AGENTLOOP_KEY=x codex exec --skip-git-repo-check "say hello"

model = "sim-model" # or sim-echo, or sim-script:NAME
model_provider = "agentloop"
check_for_update_on_startup = false
suppress_unstable_features_warning = true

[analytics]
enabled = false

[features]
responses_websockets = true # responses_websockets_v2 is another protocol: leave it off

[model_providers.agentloop]
name = "agentloop"
base_url = {base_url}
env_key = "AGENTLOOP_KEY" # must be set; this server takes any value
wire_api = "responses"
supports_websockets = true
"""

CONFIGS = {"0.107": _APPEND}


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "codex-config",
        help="print the configuration that points Codex at a server",
        description=f"{__doc__} It goes to standard output; put it into $CODEX_HOME/config.toml.",
    )
    add = parser.add_argument
    add("--url", type=config.base_url, default=DEFAULT_URL, help="the server (default %(default)s)")
    add("--codex", type=_version, default="0.107", metavar="VERSION",
        help=f"the Codex to configure: {', '.join(CONFIGS)} (default %(default)s)")  # fmt: skip
    parser.set_defaults(command=run)


async def run(options: argparse.Namespace) -> int:
    """Print the configuration."""
    print(config_toml(options.url, options.codex), end="", flush=True)
    return 0


def config_toml(url: str, version: str = "0.107") -> str:
    """The text of `config.toml`.

    Args:
        url: the server's base URL, without `/v1`.
        version: a key of `CONFIGS`.
    """
    base_url = codec.encode(f"{url}/v1").decode()  # a JSON string is a TOML string, too
    return CONFIGS[version].format(base_url=base_url)


def _version(text: str) -> str:
    if text not in CONFIGS:
        raise ConfigError(
            f"no configuration for Codex {text!r}: this server speaks with {', '.join(CONFIGS)}"
            " (newer versions speak the production design, which is not here yet)"
        )
    return text
