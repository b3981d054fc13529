"""The installer, with clients that are made at once and of nothing."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients import install
from tests.clients.clients_kit import installed
from tests.clients.install import CLIENTS, Client, InstallError, main, program_of

NAME = "toy-1"
MAKE = (
    'mkdir "$0" && printf "#!/bin/sh\\necho toy" > "$0/toy" && chmod +x "$0/toy" && echo made >> '
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "clients"
    monkeypatch.setenv("AGENTLOOP_CLIENTS", str(folder))
    monkeypatch.setattr(install, "CLIENTS", {NAME: toy(tmp_path)})
    return folder


def toy(folder: Path, package: str = "toy==1", make: str = MAKE) -> Client:
    def commands(made: Path, packages: Sequence[str]) -> list[list[str]]:
        return [["sh", "-c", f"{make}{folder}/log", str(made)]]

    return Client(commands, [package], "toy", [])


def times_made(tmp_path: Path) -> int:
    return len((tmp_path / "log").read_text().splitlines())


def test_a_client_is_installed_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program_of(NAME) is None
    assert main([]) == 0
    assert capsys.readouterr().out == f"installed {folder}/{NAME}/toy\n"
    assert main([]) == 0
    assert capsys.readouterr() == ("", "")
    assert program_of(NAME) == folder / NAME / "toy"
    assert times_made(tmp_path) == 1


def test_the_folder_may_be_named(folder: Path, tmp_path: Path) -> None:
    assert main([str(tmp_path / "elsewhere")]) == 0
    assert program_of(NAME, tmp_path / "elsewhere") is not None
    assert not folder.exists()


@pytest.mark.parametrize("lost", ["toy", "made-of"])
def test_half_a_client_is_made_anew(folder: Path, tmp_path: Path, lost: str) -> None:
    install.install(NAME, folder)
    (folder / NAME / lost).unlink()
    assert program_of(NAME) is None
    install.install(NAME, folder)
    assert program_of(NAME) is not None
    assert times_made(tmp_path) == 2


def test_another_version_of_a_part_makes_it_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install.install(NAME, folder)
    monkeypatch.setitem(install.CLIENTS, NAME, toy(tmp_path, "toy==2"))
    assert program_of(NAME) is None
    install.install(NAME, folder)
    assert (folder / NAME / "made-of").read_text() == "toy==2\n"


def test_what_a_killed_installer_left_goes(folder: Path) -> None:
    (folder / f".{NAME}-killed").mkdir(parents=True)
    install.install(NAME, folder)
    assert {path.name for path in folder.iterdir()} == {NAME, ".lock"}


@pytest.mark.parametrize("make", ["echo no room; exit 3 #", 'mkdir "$0" #'])
def test_a_failure_is_told_and_leaves_nothing(
    make: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(install.CLIENTS, NAME, toy(tmp_path, make=make))
    assert main([]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"install.py: {NAME}: ")
    assert "failed" in told
    assert {path.name for path in folder.iterdir()} == {".lock"}
    assert program_of(NAME) is None


def test_installers_at_the_same_time_make_one(folder: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        programs = list(pool.map(lambda _: install.install(NAME, folder), range(4), timeout=60))
    assert programs == [folder / NAME / "toy"] * 4
    assert times_made(tmp_path) == 1


def test_without_npm_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError, match="npm is missing; install "):
        install.install("codex-0.107.0", tmp_path / "clients")


def test_every_client_is_pinned_and_bears_its_version() -> None:
    for name, client in CLIENTS.items():
        assert client.packages[0].replace("==", "-").replace("@", "-").endswith(name)
        assert all("==" in package or "@" in package[1:] for package in client.packages)


def test_without_a_client_a_test_is_skipped_or_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"python tests/clients/install\.py"):
        installed(NAME)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"python tests/clients/install\.py"):
        installed(NAME)
