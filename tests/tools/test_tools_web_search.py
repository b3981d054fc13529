"""The search: finds things, survives any text, and builds its index once, whole or not at all."""

from __future__ import annotations

import asyncio
import os
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.clock import Clock, WallClock, run_virtual
from agentloop.errors import ToolFailed
from agentloop.tools import docstrings
from agentloop.tools.web_search import WebSearch

LIBRARY = {
    "alpha/__init__.py": '"""The alpha package."""',
    "alpha/loops.py": (
        '"""Loops that turn."""\n'
        "class Loop:\n"
        '    """A loop.\n\n    It runs coroutines."""\n'
        "    def run_forever(self):\n"
        '        """Run without an end."""\n'
        "    def _hidden(self):\n"
        '        """Not for others."""\n'
        'async def gather(*these):\n    """Wait for several coroutines at once."""\n'
        "raise SystemExit('imported')\n"
    ),
    "latin.py": '# coding: latin-1\n"""Caf\xe9 in an old encoding."""',
    "broken.py": "def (:",
    "test/test_alpha.py": '"""Tests gather."""',
    "site-packages/other.py": '"""Somebody else\'s gather."""',
    "notes.txt": "gather",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the real standard library."""
    path = tmp_path_factory.mktemp("index") / "stdlib.sqlite"
    docstrings.build(path, Event())
    return path


@pytest.fixture
def small_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of a few lines."""
    library = tmp_path / "library"
    for name, text in LIBRARY.items():
        path = library / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(library))
    return library


def test_every_public_docstring_is_an_entry(small_library: Path) -> None:
    found = list(docstrings.entries(small_library, Event()))
    assert [(entry.name, entry.place) for entry in found] == [
        ("latin", "latin.py:1"),
        ("alpha", "alpha/__init__.py:1"),
        ("alpha.loops", "alpha/loops.py:1"),
        ("alpha.loops.Loop", "alpha/loops.py:2"),
        ("alpha.loops.Loop.run_forever", "alpha/loops.py:6"),
        ("alpha.loops.gather", "alpha/loops.py:10"),
    ]
    assert found[0].text == "Café in an old encoding."


def test_indexing_stops_when_it_is_told_to(small_library: Path) -> None:
    stop = Event()
    entries = docstrings.entries(small_library, stop)
    assert next(entries).name == "latin"
    stop.set()
    assert list(entries) == []


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("asyncio.gather", "asyncio.tasks.gather"),
        ("asyncio gather", "asyncio.tasks.gather"),
        ("URLOPEN", "urllib.request.urlopen"),
        ("lru_cache", "functools.lru_cache"),
        ("how do I read a csv file", "csv"),
        ("subprocess run with timeout", "subprocess.run"),
    ],
)
async def test_the_best_result_comes_first(index: Path, query: str, first: str) -> None:
    output = await WebSearch(index).run({"query": query})
    assert output.startswith(f"1. {first} (")


async def test_a_result_has_name_place_summary_and_snippet(
    small_library: Path, tmp_path: Path
) -> None:
    search = WebSearch(tmp_path / "index.sqlite")
    assert await search.run({"query": "loop coroutines", "limit": 1}) == (
        "1. alpha.loops.Loop (alpha/loops.py:2)\nA loop.\n\nIt runs coroutines."
    )


async def test_the_limit_holds(index: Path) -> None:
    output = await WebSearch(index).run({"query": "file", "limit": 3})
    assert [block.split(".")[0] for block in output.split("\n\n") if block[0].isdigit()] == list(
        "123"
    )


@pytest.mark.parametrize(
    "query",
    ["NEAR(", "a AND", "NOT", "name:x", "foo*", '"gather', "x' OR 1=1 --", "^a", "gather\0", "日本",
     "{a b}:c", "word " * 5_000],
)  # fmt: skip
async def test_any_words_are_a_safe_query(index: Path, query: str) -> None:
    assert await WebSearch(index).run({"query": query})


@pytest.mark.parametrize("query", ["", " ", '"', "*", "()", "___", "\0"])
async def test_a_query_without_words_says_so(index: Path, query: str) -> None:
    with pytest.raises(ToolFailed, match="query has no words"):
        await WebSearch(index).run({"query": query})


def test_any_text_is_a_safe_query(small_library: Path, tmp_path: Path) -> None:
    search = WebSearch(tmp_path / "index.sqlite", is_threaded=False)

    @given(st.text(st.characters(codec=None), min_size=1))
    def check(text: str) -> None:
        assert run_virtual(lambda clock: search.run({"query": f"a {text}"}))

    check()


async def test_nothing_found_says_so(index: Path) -> None:
    assert await WebSearch(index).run({"query": "qqzzx"}) == "no results for 'qqzzx'"


def test_it_works_in_virtual_time(small_library: Path, tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        search = WebSearch(tmp_path / "index.sqlite", is_threaded=False)
        assert "alpha.loops.gather" in await search.run({"query": "gather"})

    run_virtual(main)


async def test_the_index_is_built_once(
    small_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[Path] = []
    build = docstrings.build

    def counted(index: Path, stop: Event) -> None:
        builds.append(index)
        build(index, stop)

    monkeypatch.setattr(docstrings, "build", counted)
    search = WebSearch(tmp_path / "index.sqlite")
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(search.run({"query": "gather"}))
    await WebSearch(tmp_path / "index.sqlite").run({"query": "gather"})
    assert builds == [tmp_path / "index.sqlite"]


@pytest.mark.parametrize("content", [b"", b"not a database" * 1_000], ids=["empty", "garbage"])
async def test_a_damaged_index_is_replaced(
    small_library: Path, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "index.sqlite"
    path.write_bytes(content)
    assert "alpha.loops.gather" in await WebSearch(path).run({"query": "gather"})


async def test_a_cancelled_build_ends_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = Event(), Event()

    def endless(library: Path, stop: Event) -> Iterator[docstrings.Entry]:
        begun.set()
        while not stop.wait(0.001):
            yield docstrings.Entry("name", "text", "place")
        ended.set()

    monkeypatch.setattr(docstrings, "entries", endless)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(WebSearch(tmp_path / "index.sqlite").run({"query": "x"}))
        while not begun.is_set():
            await WallClock().sleep(0.001)
        running.cancel()
    assert running.cancelled()
    assert ended.is_set()
    assert list(tmp_path.iterdir()) == []


async def test_an_index_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="cannot be used"):
        await WebSearch(tmp_path / "missing" / "index.sqlite").run({"query": "x"})


def test_the_index_is_cached_for_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = docstrings.default_index()
    assert path.parent == tmp_path / "cache" / "agentloop"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert docstrings.default_index() == tmp_path / ".cache" / "agentloop" / path.name


def test_without_a_cache_folder_it_is_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert docstrings.default_index().parent == tmp_path / f"agentloop-{os.getuid()}"


async def test_modules_without_source_are_found(tmp_path: Path) -> None:
    found = await WebSearch(tmp_path / "index").run({"query": "unicodedata normalize"})
    assert "unicodedata.normalize" in found.splitlines()[0]
