"""An SQLite full-text index over the docstrings of the running Python's standard library.

Sources are parsed, never imported, so nothing of them runs. Modules without a source (written in
C) are imported for their docstrings.
"""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import msgspec
from msgspec import Struct

from agentloop.ids import IdSource

if TYPE_CHECKING:
    from threading import Event
    from types import ModuleType

_FORMAT = 2  # another number makes every cached index be built anew
_SKIPPED = {"__pycache__", "dist-packages", "idlelib", "site-packages", "test", "tests"}
# readline would take over the terminal; the others warn that they are going to be removed.
_NOT_IMPORTED = {"readline", "audioop", "nis", "ossaudiodev", "spwd"}
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_SEARCH = """
SELECT name, place, substr(text, 1, instr(text || char(10), char(10)) - 1),
       snippet(docs, 2, '', '', '...', 40)
FROM docs WHERE docs MATCH ?
ORDER BY lower(title) IN (SELECT value FROM json_each(?)) DESC,
         bm25(docs, 10.0, 5.0, 1.0), rowid
LIMIT ?
"""


class Entry(Struct, frozen=True):
    """One docstring. `place` is `path:line`, the path relative to the library."""

    name: str
    text: str
    place: str


class Found(Struct, frozen=True):
    """A search result: the docstring's first line, and the part that fits the search best."""

    name: str
    place: str
    summary: str
    snippet: str


def entries(library: Path, stop: Event) -> Iterator[Entry]:
    """Every docstring below `library`, in a fixed order, until `stop` is set."""
    for folder, folders, files in os.walk(library):
        folders[:] = sorted(set(folders) - _SKIPPED)
        for file in sorted(files):
            if stop.is_set():
                return
            if file.endswith(".py"):
                yield from _entries_of(library, Path(folder, file))


def _entries_of(library: Path, file: Path) -> Iterator[Entry]:
    path = file.relative_to(library)
    parts = path.with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # a file that this Python cannot read documents nothing
    yield from _documented(module, tree, path.as_posix())


def _documented(name: str, node: _Documented, path: str) -> Iterator[Entry]:
    if text := ast.get_docstring(node):
        yield Entry(name, text, f"{path}:{getattr(node, 'lineno', 1)}")
    for child in node.body:
        if isinstance(child, _DEFINITIONS) and not _is_private(child.name):
            yield from _documented(f"{name}.{child.name}", child, path)


def compiled_entries(stop: Event) -> Iterator[Entry]:
    """The docstrings of the standard library's modules that have no source."""
    for name in sorted(sys.stdlib_module_names - _NOT_IMPORTED):
        if stop.is_set():
            return
        if not _is_private(name) and _is_compiled(name):
            module = import_module(name)
            yield from _members(name, module)


def _is_compiled(name: str) -> bool:
    spec = find_spec(name)
    origin = (spec and spec.origin) or ""
    return origin == "built-in" or origin.endswith(tuple(EXTENSION_SUFFIXES))


def _members(name: str, module: ModuleType) -> Iterator[Entry]:
    if module.__doc__:
        yield Entry(name, module.__doc__, f"{name} (compiled)")
    for key, member in sorted(vars(module).items()):
        if callable(member) and member.__doc__ and not _is_private(key):
            yield Entry(f"{name}.{key}", member.__doc__, f"{name} (compiled) {key}")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def build(index: Path, stop: Event) -> None:
    """Write the index in one step; leaves nothing where `stop` is set before its end.

    Raises:
        OSError, apsw.Error: the folder cannot be written.
    """
    temporary = index.with_name(IdSource().draw(".index"))
    try:
        with closing(apsw.Connection(str(temporary))) as database:
            # Nothing to roll back: an index that is not whole is thrown away.
            database.pragma("journal_mode", "off")
            database.pragma("synchronous", "off")
            with database:
                library = Path(sysconfig.get_path("stdlib"))
                _fill(database, chain(entries(library, stop), compiled_entries(stop)))
        if not stop.is_set():
            os.replace(temporary, index)
    finally:
        temporary.unlink(missing_ok=True)


def _fill(database: apsw.Connection, found: Iterator[Entry]) -> None:
    database.execute(
        "CREATE VIRTUAL TABLE docs USING fts5"
        "(title, name, text, place UNINDEXED, tokenize = 'porter unicode61')"
    )
    rows = ((e.name.rpartition(".")[2], e.name, e.text, e.place) for e in found)
    database.executemany("INSERT INTO docs VALUES (?, ?, ?, ?)", rows)
    database.pragma("user_version", _FORMAT)


def is_built(index: Path) -> bool:
    """Whether a whole index of this format is there."""
    try:
        with closing(_open(index)) as database:
            return bool(database.pragma("user_version") == _FORMAT)
    except apsw.Error:
        return False


def search(index: Path, terms: list[str], limit: int) -> list[Found]:
    """The best docstrings: first those with all terms (before the others where the last part of
    the name is one of them), then those with any; each by BM25, names weighing most.

    Args:
        terms: words of letters and digits; anything else would be query syntax.

    Raises:
        apsw.Error: the index cannot be read.
    """
    quoted = [f'"{term}"' for term in terms]
    found: dict[str, Found] = {}
    with closing(_open(index)) as database:
        for operator, titles in (" AND ", terms), (" OR ", []):
            wanted = msgspec.json.encode([title.lower() for title in titles]).decode()
            for row in database.execute(_SEARCH, (operator.join(quoted), wanted, limit)):
                one = Found(*map(str, row))
                found.setdefault(one.place, one)
    return list(found.values())[:limit]


def _open(index: Path) -> apsw.Connection:
    return apsw.Connection(str(index), flags=apsw.SQLITE_OPEN_READONLY)


def default_index() -> Path:
    """Where this Python's index is cached: the user's cache folder, else a private temporary one.

    Raises:
        OSError: neither can be written.
    """
    version = ".".join(map(str, sys.version_info[:3]))
    file = f"stdlib-{sys.implementation.name}-{version}.sqlite"
    try:
        return _writable(_cache_folder() / "agentloop") / file
    except (OSError, RuntimeError):
        return _writable(Path(tempfile.gettempdir(), f"agentloop-{os.getuid()}")) / file


def _cache_folder() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"


def _writable(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK) or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} is not ours to write")
    return folder
