"""The house rules that a machine can hold, checked on the source itself.

A check is a function from modules or texts to problems. `test_tidy_self` shows each one a sample
that breaks its rule, because a check that cannot fail checks nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 400
READING_ORDER = Path("notes/README.md")
READING_ORDER_LINES_MAX = 25

# Who may import whom: a package imports from the lines above its own, unless ONLY says less.
LEAVES = ("errors", "clock", "ids", "config", "breakdown", "gate")
LINES = (
    LEAVES, ("wire",), ("engine",), ("tokens",), ("core",), ("journal",), ("behaviors",),
    ("upstream",), ("tools",), ("admission",), ("loop",), ("link",), ("serve",), ("drive",),
    ("server",), ("agent",), ("harness",), ("cli",), ("__main__",),
)  # fmt: skip
ONLY = {
    "engine": LEAVES,
    "behaviors": (*LEAVES, "wire", "tokens", "engine.api", "core"),
    "upstream": (*LEAVES, "wire", "tokens", "engine.api"),
    "tools": (*LEAVES, "wire"),
    "link": (*LEAVES, "wire"),
    "drive": (*LEAVES, "wire", "link"),
    # these two reach a server only through a link
    "agent": (*LEAVES, "wire", "tools", "link", "drive"),
    "harness": (*LEAVES, "wire", "tools", "link", "drive", "agent"),
}
CONFINED = {"aiohttp": ("link", "upstream", "server"), "splintr": ("tokens",), "uvloop": ("cli",)}
PURE = ("wire", "tokens", "core")
IMPURE = ("agentloop.clock", "asyncio", "random", "secrets", "time")
ENTRY_POINTS = {
    "agentloop",
    "agentloop.cli",
    "agentloop.__main__",
    "agentloop.link.memory",  # for those who embed a server without a socket
}

# What is banned, with `()` where only the call is, and what to use in its place.
BANNED = {
    r"time\.(time|monotonic|perf_counter|process_time|sleep)(_ns)?": "Clock",
    r"datetime\.(datetime\.(now|utcnow|today)|date\.today)": "Clock",
    r"asyncio\.sleep\(\)": "Clock",
    r".*loop(\(\))?\.time": "Clock",
    r"asyncio\.(gather|ensure_future)": "TaskGroup",
    r".*(?<!group)\.create_task": "TaskGroup",
    r"random\.(?!Random\b).*": "random.Random(seed)",
    r"os\.urandom|secrets\.token.*|uuid\..*": "IdSource",
    r"json(\..*)?": "msgspec.json",
}
HOMES = {
    "agentloop.clock": "Clock",  # where time is read
    "agentloop.ids": "IdSource",  # where ids are drawn
    "agentloop.link.websocket": "IdSource",  # a frame's mask must be unpredictable (RFC 6455 5.3)
    "agentloop.loop.live": "TaskGroup",  # holds each task strongly until it has ended
}
LEFT_BEHIND = {
    r"\b(FIXME|TODO|XXX)\b": "unfinished",
    r"(?<![\w.:/-])/(root|home|Users|work)/": "a path of one machine",
    r"(?i)\bissue #": "an explanation that is elsewhere",
}


class Module(NamedTuple):
    name: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The part of agentloop that the module belongs to; empty for `agentloop` itself."""
        return self.name.partition(".")[2].partition(".")[0]


Check = Callable[[Iterable[Module]], Iterator[str]]
TextCheck = Callable[[Mapping[Path, str]], Iterator[str]]


def parse(texts: Mapping[str, str]) -> list[Module]:
    return [Module(name, text, ast.parse(text)) for name, text in texts.items()]


@cache
def all_texts() -> dict[Path, str]:
    """Our own text; a task that the package carries for the agent is somebody else's."""
    folders = [ROOT / folder for folder in ("agentloop", "bench", "notes", "tests")]
    paths = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    kinds = {".py", ".md", ".toml", ".html", ".js", ".css"}
    return {
        path.relative_to(ROOT): path.read_text()
        for path in sorted(paths)
        if path.suffix in kinds and ROOT / "agentloop/agent/task" not in path.parents
    }


@cache
def all_modules() -> list[Module]:
    sources = {path: text for path, text in all_texts().items() if path.suffix == ".py"}
    return parse(
        {
            ".".join(path.with_suffix("").parts).removesuffix(".__init__"): text
            for path, text in sources.items()
        }
    )


def product(modules: Iterable[Module]) -> list[Module]:
    return [module for module in modules if module.name.split(".")[0] == "agentloop"]


def nodes(module: Module, *kinds: type[ast.AST]) -> Iterator[Any]:
    return (node for node in ast.walk(module.tree) if isinstance(node, kinds))


def bindings(module: Module) -> Iterator[tuple[str, str]]:
    """Local and dotted name of all that a module imports, wherever it does so."""
    for node in nodes(module, ast.Import):
        yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
    for node in nodes(module, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def imports(module: Module) -> set[str]:
    return {dotted for _, dotted in bindings(module)}


def is_within(dotted: str, names: Iterable[str]) -> bool:
    return any(f"{dotted}.".startswith(f"{name}.") for name in names)


def module_of(dotted: str, known: Iterable[str]) -> str:
    """The longest known module that an imported name may live in, or an empty string."""
    return max((name for name in known if is_within(dotted, [name])), key=len, default="")


def allowed_imports(package: str) -> tuple[str, ...]:
    place = next((i for i, line in enumerate(LINES) if package in line), None)
    if place is None:
        return () if package else (*LEAVES, "server")
    above = tuple(name for line in LINES[:place] for name in line)
    return ONLY.get(package, above) + (LEAVES if package in LEAVES else (package,))


def check_layers(modules: Iterable[Module]) -> Iterator[str]:
    for module in product(modules):
        allowed = allowed_imports(module.package)
        for dotted in imports(module):
            root, _, inner = dotted.partition(".")
            if root == "agentloop" and not is_within(inner, allowed):
                yield f"{module.name} may not import {dotted}"
            if module.package not in CONFINED.get(root, [module.package]):
                yield f"{module.name} may not import {root}"


def check_circles(modules: Iterable[Module]) -> Iterator[str]:
    known = {module.name for module in modules}
    graph = {
        module.name: {module_of(dotted, known) for dotted in imports(module)} - {module.name, ""}
        for module in modules
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        yield " <- ".join(circle.args[1])


def check_unused(modules: Iterable[Module]) -> Iterator[str]:
    """A module is imported by another one, or named in a string (a table, `python -m`)."""
    modules = product(modules)
    known = {module.name for module in modules}
    used = set(ENTRY_POINTS)
    for module in modules:
        named = [str(node.value).partition(":")[0] for node in nodes(module, ast.Constant)]
        used |= {module_of(dotted, known) for dotted in imports(module)} - {module.name}
        used |= known.intersection(named)
    parents = {name.rpartition(".")[0] for name in used}
    yield from (f"nothing imports {name}" for name in sorted(known - used - parents))


def check_pure(modules: Iterable[Module]) -> Iterator[str]:
    for module in (m for m in product(modules) if m.package in PURE):
        for node in nodes(module, ast.AsyncFunctionDef, ast.Await):
            yield f"{module.name}:{node.lineno} may not wait"
        for dotted in imports(module):
            if is_within(dotted, IMPURE):
                yield f"{module.name} may not import {dotted}"


def check_sizes(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        if (count := len(module.text.splitlines())) > MODULE_LINES_MAX:
            yield f"{module.name} has {count} lines"
        for node in nodes(module, ast.FunctionDef, ast.AsyncFunctionDef):
            if (count := node.end_lineno - node.lineno + 1) > FUNCTION_LINES_MAX:
                yield f"{module.name}:{node.lineno} {node.name} has {count} lines"


def references(module: Module) -> Iterator[tuple[int, str]]:
    """Imported names, attributes and calls, by the name that they had where they came from."""
    aliases = dict(bindings(module))
    for node in nodes(module, ast.withitem):
        if node.optional_vars and ast.unparse(node.context_expr).endswith("TaskGroup()"):
            aliases[ast.unparse(node.optional_vars)] = "group"
    yield from ((1, dotted) for dotted in imports(module))
    for node in nodes(module, ast.Attribute, ast.Call):
        text = ast.unparse(node)
        if isinstance(node, ast.Call):
            is_zero = [ast.unparse(argument) for argument in node.args] == ["0"]
            text = ast.unparse(node.func) + ("(0)" if is_zero else "()")
        root, dot, rest = text.partition(".")
        yield node.lineno, aliases.get(root, root) + dot + rest


def check_banned(modules: Iterable[Module]) -> Iterator[str]:
    for module in product(modules):
        for line, text in references(module):
            for pattern, instead in BANNED.items():
                if re.fullmatch(pattern, text) and HOMES.get(module.name) != instead:
                    yield f"{module.name}:{line} {text}: use {instead}"


def check_tests(modules: Iterable[Module]) -> Iterator[str]:
    for module in (m for m in modules if re.match(r"tests\.(.*\.)?test_", m.name)):
        functions = nodes(module, ast.FunctionDef, ast.AsyncFunctionDef)
        cases = (ast.unparse(node.targets[0]) for node in nodes(module, ast.Assign))
        names = [*(function.name for function in functions), *cases]
        if not any(name.startswith(("test_", "Test")) for name in names):
            yield f"{module.name} tests nothing"


def check_words(texts: Mapping[Path, str]) -> Iterator[str]:
    for path, text in texts.items():
        for pattern, what in LEFT_BEHIND.items():
            yield from (f"{path}: {what}: {hit[0]}" for hit in re.finditer(pattern, text))


def check_notes(texts: Mapping[Path, str]) -> Iterator[str]:
    for path, text in texts.items():
        if path.suffix == ".md" and path.parts[0] == "notes":
            prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
            if not text.startswith("# ") or len(re.findall(r"^# ", prose, re.MULTILINE)) != 1:
                yield f"{path} needs exactly one title, at its top"
    if len(texts.get(READING_ORDER, "").splitlines()) > READING_ORDER_LINES_MAX:
        yield f"{READING_ORDER} is no longer a reading order"


CHECKS = [
    check_layers, check_circles, check_unused, check_pure, check_sizes, check_banned, check_tests
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_source_keeps_the_rule(check: Check) -> None:
    problems = list(check(all_modules()))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("check", [check_words, check_notes])
def test_text_keeps_the_rule(check: TextCheck) -> None:
    naming = {Path("tests/test_tidy.py"), Path("tests/test_tidy_self.py")}  # name what is banned
    others = {path: text for path, text in all_texts().items() if path not in naming}
    problems = list(check(others))
    assert not problems, "\n".join(problems)
