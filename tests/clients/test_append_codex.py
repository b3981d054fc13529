"""The unmodified Codex 0.107.0 on the append protocol, seen from both ends.

What Codex was told is read from its own reports, what it sent from the server's record. Codex sends
nothing when a user interrupts it: it reads on to the turn's `response.done`. Its next request is an
append where it had taken that `done` before the interrupt, else a create.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.cli_kit import agentloop, script
from tests.clients.clients_kit import TIMEOUT_S, Message, Served, outputs, process, serving
from tests.clients.codex_kit import (
    PARALLEL_MODEL,
    Codex,
    UserTurn,
    codex,
    environment,
    make_home,
)

TERMINALS = ("response.completed", "response.incomplete", "response.failed")
CREATE, APPEND = "response.create", "response.append"

Turns = Sequence[Sequence[object]]


class Session(NamedTuple):
    """A Codex, and the server that it talks to."""

    codex: Codex
    server: Served

    def received(self) -> list[str]:
        """The types of what Codex sent; all of it came over one link."""
        frames = self.server.frames()
        assert {frame.link for frame in frames} == {1}
        return [frame.frame["type"] for frame in frames if frame.dir == "in"]

    def response_ids(self) -> list[str]:
        """The Responses in the order of their creation. None ended before its link did."""
        assert not self.server.said(*TERMINALS, "error")
        return [event["response"]["id"] for event in self.server.said("response.created")]

    def shown_ids(self) -> list[str]:
        """The ids of the messages that Codex shows."""
        items = [each["params"]["item"] for each in self.codex.heard("item/completed")]
        return [item["id"] for item in items if item["type"] == "agentMessage"]

    def said_ids(self) -> list[str]:
        """The ids of the messages that the server said."""
        items = [each["item"] for each in self.server.said("response.output_item.done")]
        return [item["id"] for item in items if item["type"] == "message"]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@asynccontextmanager
async def session(
    command: Path,
    folder: Path,
    *serve_options: str,
    model: str = "sim-script:test",
    codex_options: Sequence[str] = (),
    **scripts: Turns,
) -> AsyncIterator[Session]:
    """A server and a Codex in a folder that holds `workspace`; `model` is asked for at first."""
    for name, turns in scripts.items():
        script(folder, turns, name)
    async with serving(folder, "--script-dir", str(folder), *serve_options) as server:
        home = make_home(folder, server.url)
        workspace = folder / "workspace"
        async with codex(command, home, workspace, *codex_options, model=model) as running:
            yield Session(running, server)


def run(cmd: str) -> dict[str, object]:
    return {"call": {"name": "exec_command", "arguments": {"cmd": cmd}}}


def text(said: str) -> dict[str, object]:
    return {"text": said}


def user_texts(message: Message) -> list[str]:
    items = [item for item in message["input"] if item.get("role") == "user"]
    return [part["text"] for item in items for part in item["content"]]


async def test_three_user_turns_are_one_response(
    codex_append: Path, workspace: Path, tmp_path: Path
) -> None:
    turns = [
        [run("echo one > made; cat made")],
        [text("One more."), run("echo two >> made; cat made")],
        [text("first answer")],
        [text("second answer")],
        [run("echo three >> made; cat made")],
        [text("third answer")],
    ]
    async with session(codex_append, tmp_path, test=turns) as here:
        answers = [await here.codex.say(f"question {number}") for number in (1, 2, 3)]
        assert here.received() == [CREATE, *[APPEND] * 5]
        response_ids = here.response_ids()
        server = here.server
    assert answers == [
        UserTurn("completed", ["One more.", "first answer"]),
        UserTurn("completed", ["second answer"]),
        UserTurn("completed", ["third answer"]),
    ]
    create, *appends = server.received()
    assert user_texts(create)[-1] == "question 1"
    assert [user_texts(append) for append in appends] == [
        [],
        [],
        ["question 2"],
        ["question 3"],
        [],
    ]
    results = [result for append in appends for result in outputs(append)]
    assert [call_id for call_id, _ in results] == server.calls()
    printed = [output.partition("Output:\n")[2].split() for _, output in results]
    assert printed == [["one"], ["one", "two"], ["one", "two", "three"]]
    assert (workspace / "made").read_text() == "one\ntwo\nthree\n"
    stops = server.said("response.done")
    assert [stop["response"]["id"] for stop in stops] == response_ids * 6


async def test_codex_counts_the_tokens_that_were_used(
    codex_append: Path, workspace: Path, tmp_path: Path
) -> None:
    turns = [[run("echo one")], [text("first")], [text("second")]]
    async with session(codex_append, tmp_path, test=turns) as (codex, server):
        await codex.say("question 1")
        await codex.say("question 2")
        counted = codex.heard("thread/tokenUsage/updated")[-1]["params"]["tokenUsage"]
    last = server.said("response.done")[-1]["response"]
    for ours, theirs in (("usage", "last"), ("usage_total", "total")):
        for name in ("input", "output", "total"):
            assert counted[theirs][f"{name}Tokens"] == last[ours][f"{name}_tokens"], theirs


async def test_parallel_calls_come_back_in_one_append(
    codex_append: Path, workspace: Path, tmp_path: Path
) -> None:
    """The two tools wait for each other: one after the other, neither would say its word."""
    for name in ("to", "fro"):
        os.mkfifo(workspace / name)
    turns = [
        [run("echo ping > to; cat fro"), run("cat to; echo pong > fro"), run("echo alone")],
        [text("all three")],
    ]
    catalog = tmp_path / "catalog.json"
    catalog.write_bytes(msgspec.json.encode({"models": [PARALLEL_MODEL]}))
    options = ["-c", f"model_catalog_json={catalog}"]
    async with session(codex_append, tmp_path, codex_options=options, test=turns) as here:
        assert await here.codex.say("go") == UserTurn("completed", ["all three"])
        assert here.received() == [CREATE, APPEND]
    create, append = here.server.received()
    assert create["parallel_tool_calls"] is True
    results = list(outputs(append))
    assert [call_id for call_id, _ in results] == here.server.calls()
    words = [output.partition("Output:\n")[2].strip() for _, output in results]
    assert words == ["pong", "ping", "alone"]


async def test_a_turn_interrupted_in_its_tool_goes_on(
    codex_append: Path, workspace: Path, tmp_path: Path
) -> None:
    """The next user turn is an append. But now and then Codex is quicker than its own interrupt: it
    appends the aborted output first, drops what that brings, and a create supersedes it."""
    turns = [[run("sleep 60")], [text("second")], [text("third")]]
    async with session(codex_append, tmp_path, test=turns) as here:
        turn_id = await here.codex.start("question 1")
        await here.codex.notified("item/started", turn_id, "commandExecution")
        await here.codex.notified("thread/tokenUsage/updated", turn_id)  # it has taken the `done`
        assert (await here.codex.interrupt(turn_id)).status == "interrupted"
        assert await here.codex.say("question 2") == UserTurn("completed", ["second"])
        assert await here.codex.say("question 3") == UserTurn("completed", ["third"])
        kinds = here.received()
        assert kinds in ([CREATE, APPEND, APPEND], [CREATE, APPEND, CREATE, APPEND])
        assert len(set(here.response_ids())) == kinds.count(CREATE)
        assert here.shown_ids()[-2:] == here.said_ids()[-2:]
    (call_id, output), *others = outputs(here.server.received()[1])
    assert ([call_id], others) == (here.server.calls(), [])
    assert output.startswith("aborted by user")
    assert user_texts(here.server.received()[-2])[-1] == "question 2"


INTERRUPTED = {
    "after a text": (text("partial"), "item/completed", "agentMessage", ["partial"]),
    "in a tool": (run("sleep 60"), "item/started", "commandExecution", []),
}


@pytest.mark.parametrize(("part", "method", "kind", "texts"), INTERRUPTED.values(), ids=INTERRUPTED)
async def test_a_turn_interrupted_while_the_model_is_at_work_is_superseded(
    codex_append: Path,
    workspace: Path,
    tmp_path: Path,
    part: object,
    method: str,
    kind: str,
    texts: list[str],
) -> None:
    late: list[object] = [{"stall_ms": 3_000}, text("late")]
    turns: Turns = [[part, *late], [text("second")], [text("third")]]
    async with session(codex_append, tmp_path, test=turns) as here:
        turn_id = await here.codex.start("question 1")
        await here.codex.notified(method, turn_id, kind)
        assert await here.codex.interrupt(turn_id) == UserTurn("interrupted", texts)
        assert not here.server.said("response.done")
        assert await here.codex.say("question 2") == UserTurn("completed", ["second"])
        assert await here.codex.say("question 3") == UserTurn("completed", ["third"])
        check_superseded(here)


async def test_a_text_interrupted_in_its_middle_is_superseded(
    codex_append: Path, workspace: Path, tmp_path: Path
) -> None:
    async with session(codex_append, tmp_path, "--profile", "gpu65", model="sim-echo") as here:
        turn_id = await here.codex.start("word " * 200)
        await here.codex.notified("item/agentMessage/delta", turn_id)
        assert await here.codex.interrupt(turn_id) == UserTurn("interrupted", [])
        assert not here.server.said("response.done")
        assert await here.codex.say("question 2") == UserTurn("completed", ["question 2"])
        assert await here.codex.say("question 3") == UserTurn("completed", ["question 3"])
        check_superseded(here)


def check_superseded(here: Session) -> None:
    """The interrupted Response said its own `done`; then a create, and all goes on from there."""
    assert here.received() == [CREATE, CREATE, APPEND]
    first, second = here.response_ids()
    assert first != second
    stops = [event["response"]["id"] for event in here.server.said("response.done")]
    assert stops == [first, second, second]
    *_, aborted, question = user_texts(here.server.received()[1])
    assert aborted.startswith("<turn_aborted>")
    assert question == "question 2"


async def test_another_model_is_another_response(
    codex_append: Path, workspace: Path, tmp_path: Path
) -> None:
    turns = [[text("first")], [text("not second")], [text("not third")]]
    others = [[text("not said")], [run("echo two")], [text("second")], [text("third")]]
    async with session(codex_append, tmp_path, test=turns, other=others) as here:
        assert await here.codex.say("question 1") == UserTurn("completed", ["first"])
        changed = await here.codex.say("question 2", model="sim-script:other")
        assert changed == UserTurn("completed", ["second"])
        assert await here.codex.say("question 3") == UserTurn("completed", ["third"])
        assert here.received() == [CREATE, CREATE, APPEND, APPEND]
        assert len(set(here.response_ids())) == 2
    sent = here.server.received()
    assert [create["model"] for create in sent[:2]] == ["sim-script:test", "sim-script:other"]
    assert [dict(outputs(append)).keys() for append in sent[2:]] == [
        set(here.server.calls()),
        set(),
    ]


async def test_codex_exec_appends_with_the_printed_configuration(
    codex_append: Path, workspace: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with serving(tmp_path, "--drive-tools") as server:
        printed = agentloop("codex-config", "--url", server.url).stdout
        (home / "config.toml").write_text(printed)
        exec_hello = ["exec", "--skip-git-repo-check", "--json", "say hello"]
        log = home / "stderr.log"
        async with process(
            codex_append, *exec_hello, cwd=workspace, log=log, environment=environment(home)
        ) as started:
            async with asyncio.timeout(TIMEOUT_S):
                stdout, _ = await started.communicate(b"")
        assert started.returncode == 0, log.read_text()
    lines = [msgspec.json.decode(line) for line in stdout.splitlines()]
    items = [line["item"] for line in lines if line["type"] == "item.completed"]
    answers = [item["text"] for item in items if item["type"] == "agent_message"]
    said = [
        part["text"]
        for event in server.said("response.output_item.done")
        for part in event["item"].get("content", [])
    ]
    assert answers == said
    assert answers[-1].startswith("You asked: say hello")
    kinds = [message["type"] for message in server.received()]
    assert kinds == [CREATE, *[APPEND] * (len(kinds) - 1)]
    assert len(kinds) > 1
