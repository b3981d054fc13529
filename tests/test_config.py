from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentloop import config
from agentloop.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8765", "http://127.0.0.1:8765"),
        ("http://h/", "http://h"),
        ("ws://h:1/v1/responses", "http://h:1"),
        ("wss://h/gate/v1/", "https://h/gate"),
        ("http://[::1]:8", "http://[::1]:8"),
    ],
)
def test_a_server_url_becomes_its_base(text: str, url: str) -> None:
    assert config.base_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h:1",
        "ftp://h",
        "http://",
        "http://h:99999",
        "http://[::1",
        "http://h?x=1",
        "http://..:1",
        "http://a..b",
        f"http://{'a' * 64}.com",
    ],
)
def test_another_url_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.base_url(text)
    assert repr(text) in caught.value.message


def test_files_and_folders_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert config.existing_file(str(file)) == file
    assert config.existing_folder(str(tmp_path)) == tmp_path
    assert config.new_file(str(tmp_path / "new")) == tmp_path / "new"


@pytest.mark.parametrize(
    ("check", "name", "match"),
    [
        (config.existing_file, "none", "No such file"),
        (config.existing_file, "", "is no file"),
        (config.existing_file, "nul\0", "null"),
        (config.existing_folder, "file", "is no folder"),
        (config.new_file, "none/new", "No such file"),
        (config.new_file, "", "is a folder"),
    ],
)
def test_a_wrong_path_is_one_clear_error(
    tmp_path: Path, check: Callable[[str], Path], name: str, match: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=match):
        check(f"{tmp_path}/{name}")


@pytest.mark.parametrize("text", ["-1", "65536", "x", "", "1.5", "²"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no port"):
        config.port(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no duration"):
        config.seconds(text)


@pytest.mark.parametrize("text", ["x", "", "1.5", str(2**63), str(-(2**63) - 1), "9" * 5_000])
def test_what_is_no_seed_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no seed"):
        config.seed(text)


@pytest.mark.parametrize("seed", [0, -(2**63), 2**63 - 1])
def test_a_seed_has_64_bits(seed: int) -> None:
    assert config.seed(str(seed)) == seed


def test_ports_and_durations() -> None:
    assert (config.port("0"), config.seconds("1.5")) == (0, 1.5)
