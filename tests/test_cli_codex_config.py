"""What `agentloop codex-config` prints can be redirected straight into Codex's folder."""

from __future__ import annotations

import tomllib

import pytest

from agentloop.cli import main
from tests.cli_kit import agentloop

PROVIDER = {
    "name": "agentloop",
    "base_url": "http://127.0.0.1:8765/v1",
    "env_key": "AGENTLOOP_KEY",
    "wire_api": "responses",
    "supports_websockets": True,
}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["codex-config", *arguments]) == 0
    stdout, stderr = capsys.readouterr()
    assert stderr == ""
    return stdout


def test_the_configuration_selects_the_append_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    config = tomllib.loads(printed(capsys))
    assert config["model_providers"] == {config["model_provider"]: PROVIDER}
    assert config["features"] == {"responses_websockets": True}


def test_codex_asks_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    config = tomllib.loads(printed(capsys))
    assert config["analytics"] == {"enabled": False}
    assert config["check_for_update_on_startup"] is False


def test_comments_say_how_to_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    comments = [line for line in printed(capsys).splitlines() if line.startswith("#")]
    for said in ("config.toml", "agentloop serve", "AGENTLOOP_KEY=", "codex exec "):
        assert any(said in line for line in comments), said


@pytest.mark.parametrize(
    ("url", "base_url"),
    [
        ("http://127.0.0.1:18765", "http://127.0.0.1:18765/v1"),
        ("http://127.0.0.1:18765/v1/", "http://127.0.0.1:18765/v1"),
        ("ws://127.0.0.1:18765/v1/responses", "http://127.0.0.1:18765/v1"),
        ("https://loop.example/team", "https://loop.example/team/v1"),
        ('http://odd"name:1', 'http://odd"name:1/v1'),
    ],
)
def test_the_url_may_be_written_as_elsewhere(
    url: str, base_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tomllib.loads(printed(capsys, "--url", url))
    assert config["model_providers"]["agentloop"]["base_url"] == base_url


def test_only_what_the_server_speaks_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--codex", "0.107") == printed(capsys)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "nowhere"], "nowhere"),
        (["--url", "http://..:1"], "label"),
        (["--codex", "current"], "speaks with 0.107"),
        (["--codex", "0.107", "more"], "more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_prints_no_configuration(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codex-config", *arguments]) == 2
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    assert stderr.startswith("agentloop: ")
    assert stderr.count("\n") == 1
    assert says in stderr


def test_the_process_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    done = agentloop("codex-config")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed(capsys)
