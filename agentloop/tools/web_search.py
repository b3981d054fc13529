"""A search engine that is always there: the standard library's docstrings, ranked."""

from __future__ import annotations

import asyncio
import re
from threading import Event
from typing import TYPE_CHECKING, Annotated

import apsw
from msgspec import Meta

from agentloop.errors import ToolFailed
from agentloop.tools import docstrings
from agentloop.tools.api import Arguments, Durability, define

if TYPE_CHECKING:
    from pathlib import Path

_WORD = re.compile(r"[^\W_]+")
_WORDS_MAX = 32

_Query = Annotated[str, Meta(description="Words or a qualified name, as `asyncio.gather`.")]
_Limit = Annotated[int, Meta(ge=1, le=20, description="Results wanted.")]


class WebSearchArguments(Arguments, frozen=True):
    query: _Query
    limit: _Limit = 5


class WebSearch:
    """Searches an index that the first call builds, once per Python version and user.

    Args:
        index_path: the index file; None is the user's cache folder.
        is_threaded: build in a thread, so that the event loop goes on; virtual time has none.
    """

    name = "web_search"
    kind: Durability = "pure"
    definition = define(
        name, "Search the documentation of Python's standard library.", WebSearchArguments
    )

    def __init__(self, index_path: Path | None = None, is_threaded: bool = True) -> None:
        self._index_path = index_path
        self._is_threaded = is_threaded
        self._building = asyncio.Lock()

    async def run(self, arguments: dict[str, object]) -> str:
        asked = WebSearchArguments.read(arguments)
        words = _WORD.findall(asked.query)[:_WORDS_MAX]
        if not words:
            raise ToolFailed("query has no words; name what you look for")
        try:
            found = docstrings.search(await self._index(), words, asked.limit)
        except (OSError, apsw.Error) as error:
            raise ToolFailed(f"the search index cannot be used: {error}") from error
        if not found:
            return f"no results for {asked.query!r}"
        return "\n\n".join(_result(rank, one) for rank, one in enumerate(found, start=1))

    async def _index(self) -> Path:
        async with self._building:
            index = self._index_path or docstrings.default_index()
            if not docstrings.is_built(index):
                await self._build(index)
            return index

    async def _build(self, index: Path) -> None:
        stop = Event()
        if not self._is_threaded:
            docstrings.build(index, stop)
            return
        loop = asyncio.get_running_loop()
        building = loop.run_in_executor(None, docstrings.build, index, stop)
        try:
            await asyncio.shield(building)
        finally:
            stop.set()
            await asyncio.wait((building,))  # the thread ends before the cancellation passes


def _result(rank: int, found: docstrings.Found) -> str:
    lines = [f"{rank}. {found.name} ({found.place})", found.summary]
    if not found.snippet.startswith(found.summary):
        lines.append(found.snippet)
    elif len(found.snippet) > len(found.summary):
        lines[1] = found.snippet
    return "\n".join(lines)
