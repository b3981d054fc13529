"""Each check of `test_tidy` sees what breaks its rule, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_tidy import (
    FUNCTION_LINES_MAX,
    MODULE_LINES_MAX,
    READING_ORDER,
    READING_ORDER_LINES_MAX,
    Check,
    check_banned,
    check_circles,
    check_layers,
    check_notes,
    check_pure,
    check_sizes,
    check_tests,
    check_unused,
    check_words,
    parse,
)

LONG = "def long():\n" + "    pass\n" * FUNCTION_LINES_MAX
BROKEN: list[tuple[Check, dict[str, str]]] = [
    (check_layers, {"agentloop.engine.sim.batch": "import agentloop.wire.items"}),
    (check_layers, {"agentloop.behaviors.replay": "from agentloop.engine import sim"}),
    (check_layers, {"agentloop.agent.run": "def f():\n    from agentloop.serve import lanes"}),
    (check_layers, {"agentloop.harness.run": "from agentloop import server"}),
    (check_layers, {"agentloop.errors": "from agentloop.wire.items import Item"}),
    (check_layers, {"agentloop.elsewhere": "from agentloop.errors import AgentLoopError"}),
    (check_layers, {"agentloop.agent.run": "import aiohttp"}),
    (check_layers, {"agentloop.server.app": "from uvloop import Loop"}),
    (check_circles, {"a": "from b import c", "b.c": "import a"}),
    (check_unused, {"agentloop.wire.dead": "import agentloop.wire.dead"}),
    (check_pure, {"agentloop.core.lanes": "async def f(): ..."}),
    (check_pure, {"agentloop.tokens.render": "from agentloop.clock import Clock"}),
    (check_sizes, {"a": LONG}),
    (check_sizes, {"a": "pass\n" * (MODULE_LINES_MAX + 1)}),
    (check_tests, {"tests.wire.test_sse": "def helper(): ..."}),
]
KEPT: list[tuple[Check, dict[str, str]]] = [
    (check_layers, {"agentloop.behaviors.replay": "from agentloop.engine.api import Script"}),
    (check_layers, {"agentloop.config": "from agentloop import errors"}),
    (check_layers, {"agentloop.link.http": "import aiohttp.web\nimport agentloop.wire.sse"}),
    (check_circles, {"a": "from b import c", "b": "import d", "b.c": "import b"}),
    (check_unused, {"agentloop.wire.sse": "", "agentloop.cli": "'agentloop.wire.sse:main'"}),
    (check_unused, {"agentloop.wire.sse": "", "agentloop.cli": "from agentloop.wire import sse"}),
    (check_pure, {"agentloop.loop.sampling": "async def f(): await g()"}),
    (check_sizes, {"a": LONG.replace("    pass\n", "", 1)}),
    (check_tests, {"tests.wire.test_sse": "class A:\n    def test_b(self): ..."}),
    (check_tests, {"tests.core.test_machine": "TestMachine = Machine.TestCase"}),
]
BANNED_SAMPLES = [
    "import time\ntime.monotonic()",
    "import time as t\nt.perf_counter_ns()",
    "from time import sleep",
    "from datetime import datetime as d\nd.now()",
    "import asyncio\nasyncio.sleep(1)",
    "import asyncio as aio\naio.get_running_loop().time()",
    "self.loop.time()",
    "import asyncio\nasyncio.create_task(f())",
    "self._loop.create_task(f())",
    "from asyncio import gather",
    "import random\nrandom.choice(x)",
    "from uuid import uuid4",
    "from json import dumps",
    "import json",
]
FINE_SAMPLES = [
    "import asyncio\nasyncio.sleep(0)",
    "async def f():\n    async with TaskGroup() as tools:\n        tools.create_task(g())",
    "def f(group):\n    group.create_task(g())",
    "import random\nrandom.Random(7).random()",
    "import msgspec\nmsgspec.json.encode(x)",
    "self._clock.sleep(1)\nusage.time",
]


@pytest.mark.parametrize(("check", "sources"), BROKEN)
def test_check_sees_the_break(check: Check, sources: dict[str, str]) -> None:
    assert len(list(check(parse(sources)))) == 1


@pytest.mark.parametrize(("check", "sources"), KEPT)
def test_check_leaves_good_code_alone(check: Check, sources: dict[str, str]) -> None:
    assert list(check(parse(sources))) == []


@pytest.mark.parametrize("source", BANNED_SAMPLES)
def test_banned_name_is_seen(source: str) -> None:
    assert list(check_banned(parse({"agentloop.link.wan": source})))


@pytest.mark.parametrize("source", FINE_SAMPLES)
def test_other_names_are_fine(source: str) -> None:
    assert list(check_banned(parse({"agentloop.link.wan": source}))) == []


def test_banned_name_has_a_home() -> None:
    assert list(check_banned(parse({"agentloop.clock": "import time\ntime.time()"}))) == []
    assert list(check_banned(parse({"agentloop.clock": "import json"})))


@pytest.mark.parametrize("text", ["# FIXME: x", "/home/me/x", "see Issue #7", "TODO", "XXX"])
def test_leftover_words_are_seen(text: str) -> None:
    assert len(list(check_words({Path("a.py"): text}))) == 1


@pytest.mark.parametrize("text", ["# One\n# Two\n", "One\n", "\n# One\n"])
def test_note_without_one_title_is_seen(text: str) -> None:
    assert len(list(check_notes({Path("notes/a.md"): text}))) == 1


def test_good_note_is_left_alone() -> None:
    assert list(check_notes({Path("notes/a.md"): "# One\n\n```bash\n# comment\n```\n"})) == []


def test_long_reading_order_is_seen() -> None:
    text = "# Notes\n" + "more\n" * READING_ORDER_LINES_MAX
    assert len(list(check_notes({READING_ORDER: text}))) == 1
