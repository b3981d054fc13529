"""openai-agents' hosted multi-agent model, unmodified, drives one Response by `response.inject`.

The client stops reading at the first call that is announced, runs that one tool, injects its
output and reads on, so it never runs two tools of a turn at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from aiohttp import ClientSession
from msgspec import Struct

from tests.cli_kit import script
from tests.clients.clients_kit import (
    ROOT,
    TIMEOUT_S,
    Frame,
    Message,
    Served,
    outputs,
    process,
    serving,
)

Turns = Sequence[Sequence[object]]

RUN_TIMEOUT_S = 120  # of a whole run of the client, whose imports alone take seconds
CLIENT = Path(__file__).with_name("openai_agents_hosted.py")
BROKEN = "An error occurred while running the tool. Please try again."  # the client's own words


class Run(Struct):
    """What the client reports of one run; `answers` are outputs by call id."""

    final_output: str
    usage: dict[str, int]
    answers: dict[str, str]


class Report(Struct):
    """What the client prints."""

    runs: list[Run]


class Ended(NamedTuple):
    """How the client ended: its exit code, what it printed, and what it complained of."""

    code: int | None
    output: bytes
    complaint: str


class Session:
    """What the client reports of a job, and what the server recorded of it."""

    def __init__(self, runs: Sequence[Run], frames: Sequence[Frame]) -> None:
        self.runs = runs
        self.frames = frames

    def links(self) -> set[int]:
        return {line.link for line in self.frames}

    def sent(self, link: int) -> list[Message]:
        """What the client sent on a link."""
        return [line.frame for line in self.frames if (line.link, line.dir) == (link, "in")]

    def said(self, link: int, *types: str) -> list[Message]:
        """What the server said of these types on a link."""
        spoken = [line.frame for line in self.frames if (line.link, line.dir) == (link, "out")]
        return [event for event in spoken if event["type"] in types]

    def calls(self, link: int) -> dict[str, Message]:
        """Announced calls by id, in order."""
        items = [event["item"] for event in self.said(link, "response.output_item.done")]
        return {item["call_id"]: item for item in items if item["type"] == "function_call"}

    def place(self, type_: str, call_id: str) -> int:
        """Where in the record the first frame of this type that is about this call stands."""
        return next(
            place
            for place, line in enumerate(self.frames)
            if line.frame["type"] == type_ and call_id in _call_ids(line.frame)
        )


def _call_ids(event: Message) -> list[str | None]:
    """The calls that an announcement or an inject is about."""
    if event["type"] == "response.inject":
        return [call_id for call_id, _ in outputs(event)]
    return [event["item"].get("call_id")]


def call(name: str, city: str) -> Message:
    return {"call": {"name": name, "arguments": {"city": city}}}


@asynccontextmanager
async def scripted(folder: Path, turns: Turns) -> AsyncIterator[Served]:
    """A fresh server that says these turns; it keeps its files in a new folder."""
    folder.mkdir()
    script(folder, turns)
    async with serving(folder, "--profile", "instant", "--script-dir", str(folder)) as served:
        yield served


async def run_client(python: Path, folder: Path, turns: Turns, **job: object) -> Session:
    """Run a job of the client's against a server that says these turns."""
    async with scripted(folder / "run", turns) as served:
        ended = await end_of_client(python, folder, served, **job)
    assert ended.code == 0, ended.complaint
    report = msgspec.json.decode(ended.output, type=Report)
    return Session(report.runs, served.frames())


async def end_of_client(python: Path, folder: Path, served: Served, **job: object) -> Ended:
    """Run a job of the client's to its end; one prompt where it says nothing else."""
    full = {"base_url": served.url, "model": "sim-script:test", "prompts": ["go"], **job}
    log = folder / "client.log"
    async with process(python, CLIENT, _encoded(full), cwd=ROOT, log=log, environment={}) as client:
        assert client.stdout is not None
        async with asyncio.timeout(RUN_TIMEOUT_S):
            output = await client.stdout.read()
    return Ended(client.returncode, output, log.read_text())


def check_one_response(session: Session, link: int = 1) -> Message:
    """One create, one inject per call, each accepted in order; returns what the terminal tells."""
    calls = session.calls(link)
    create, *injects = session.sent(link)
    accepted = session.said(link, "response.inject.created")
    assert create["type"] == "response.create"
    assert [inject["type"] for inject in injects] == ["response.inject"] * len(calls)
    assert [len(inject["input"]) for inject in injects] == [1] * len(calls)
    assert [_call_ids(inject) for inject in injects] == [[call_id] for call_id in calls]
    assert len(accepted) == len(calls)
    assert not session.said(
        link, "response.done", "response.append.accepted", "response.inject.failed", "error"
    )
    [created] = session.said(link, "response.created")
    [terminal] = session.said(link, "response.completed", "response.incomplete", "response.failed")
    assert terminal["type"] == "response.completed"
    ids = {created["response"]["id"], *(event["response_id"] for event in [*injects, *accepted])}
    assert ids == {terminal["response"]["id"]}
    told: Message = terminal["response"]
    return told


def figures(usage: Mapping[str, Any]) -> dict[str, int]:
    """A usage object of the wire in the client's own words, as one request."""
    return {
        "requests": 1,
        "input_tokens": usage["input_tokens"],
        "cached_tokens": usage["input_tokens_details"]["cached_tokens"],
        "output_tokens": usage["output_tokens"],
        "reasoning_tokens": usage["output_tokens_details"]["reasoning_tokens"],
        "total_tokens": usage["total_tokens"],
    }


async def usage_of_turns(
    folder: Path, turns: Turns, create: Message, answers: Sequence[str]
) -> list[Message]:
    """What each turn of the same work costs, as `response.done` tells it on an append link.

    The server is a fresh one, so that its prefix cache is as empty. `answers` in call order.
    """
    left = list(answers)
    usages: list[Message] = []
    async with (
        scripted(folder / "reference", turns) as served,
        ClientSession() as http,
        http.ws_connect(f"{served.url}/v1/responses?protocol=append") as link,
    ):
        await link.send_str(_encoded(create | {"agent_loop": {"final": "complete"}}))
        while True:
            event = await link.receive_json(loads=msgspec.json.decode, timeout=TIMEOUT_S)
            assert event["type"] != "error", event
            if event["type"] not in ("response.done", "response.completed"):
                continue
            usages.append(event["response"]["usage"])
            if event["type"] == "response.completed":
                return usages
            items = [
                {
                    "type": "function_call_output",
                    "call_id": pending["call_id"],
                    "output": left.pop(0),
                }
                for pending in event["response"]["pending_tool_calls"]
            ]
            await link.send_str(_encoded({"type": "response.append", "input": items}))


def _encoded(message: Message) -> str:
    return msgspec.json.encode(message).decode()


def summed(usages: Sequence[Message]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for usage in usages:
        total.update(figures(usage))
    return {**total, "requests": 1}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_three_calls_in_a_row_are_one_response(
    openai_agents: Path, tmp_path: Path, is_streamed: bool
) -> None:
    turns = [
        [{"reasoning": "Where?"}, {"text": "Let me look."}, call("look_up", "Bern")],
        [call("look_up", "Oslo")],
        [{"reasoning": "And then?"}, call("look_up", "Rome")],
        [{"reasoning": "So."}, {"text": "All three are sunny."}],
    ]
    session = await run_client(openai_agents, tmp_path, turns, is_streamed=is_streamed)
    told = check_one_response(session)
    [run] = session.runs
    answers = ["sunny in Bern", "sunny in Oslo", "sunny in Rome"]
    usages = await usage_of_turns(tmp_path, turns, session.sent(1)[0], answers)

    assert session.links() == {1}
    assert run.final_output == "All three are sunny."
    assert list(run.answers.values()) == answers
    assert len(usages) == len(turns)
    assert run.usage == figures(told["usage"]) == summed(usages)


async def test_three_calls_of_one_turn_get_one_inject_each(
    openai_agents: Path, tmp_path: Path
) -> None:
    cities = ["Bern", "Oslo", "Rome"]
    turns = [
        [{"text": "Let me look."}, *(call("look_up", city) for city in cities)],
        [{"text": "All three are sunny."}],
    ]
    session = await run_client(openai_agents, tmp_path, turns)
    told = check_one_response(session)
    [run] = session.runs
    calls = session.calls(1)
    usages = await usage_of_turns(tmp_path, turns, session.sent(1)[0], list(run.answers.values()))

    assert run.final_output == "All three are sunny."
    for call_id, city in zip(calls, cities, strict=True):
        assert calls[call_id]["arguments"] == f'{{"city":"{city}"}}'
        assert run.answers[call_id] == f"sunny in {city}"
    for count, accepted in enumerate(session.said(1, "response.inject.created"), start=1):
        assert set(list(calls)[:count]).isdisjoint(accepted["pending"])
    assert len(usages) == len(turns)
    assert run.usage == figures(told["usage"]) == summed(usages)


async def test_a_raising_tool_and_a_slow_one_beside_quick_ones(
    openai_agents: Path, tmp_path: Path
) -> None:
    """The second run is the one to look at: in the first the client is still warming up."""
    turns = [
        [
            call("look_up", "Bern"),
            {"stall_ms": 1000},
            call("look_up_slowly", "Oslo"),
            call("break_down", "Rome"),
            call("look_up", "Kyiv"),
        ],
        [{"text": "It depends."}],
    ]
    session = await run_client(openai_agents, tmp_path, turns, prompts=["go", "and again"])
    for link, run in enumerate(session.runs, start=1):
        check_one_response(session, link)
        assert list(run.answers) == list(session.calls(link))
        answers = list(run.answers.values())
        assert answers == ["sunny in Bern", "foggy in Oslo", BROKEN, "sunny in Kyiv"]
        assert run.final_output == "It depends."
    quick, slow, _, last = session.calls(2)
    announced, injected = "response.output_item.done", "response.inject"
    assert session.place(injected, quick) < session.place(announced, slow)  # mid-turn
    assert session.place(announced, last) < session.place(injected, slow)


TWICE = [
    [{"reasoning": "Where?"}, {"text": "Let me look."}, call("look_up", "Bern")],
    [{"text": "Bern is sunny."}],
    [call("look_up", "Oslo")],
    [{"text": "So is Oslo."}],
]


@pytest.mark.parametrize(
    ("carry", "second"),
    [("history", "So is Oslo."), ("id", "So is Oslo."), ("nothing", "Bern is sunny.")],
)
async def test_a_second_run_creates_on_a_link_of_its_own(
    openai_agents: Path, tmp_path: Path, carry: str, second: str
) -> None:
    session = await run_client(openai_agents, tmp_path, TWICE, prompts=["go", "again"], carry=carry)
    told = [check_one_response(session, link) for link in (1, 2)]

    assert session.links() == {1, 2}
    assert [run.final_output for run in session.runs] == ["Bern is sunny.", second]
    assert [run.usage for run in session.runs] == [figures(one["usage"]) for one in told]
    assert told[1]["previous_response_id"] == (told[0]["id"] if carry == "id" else None)


async def test_a_failed_response_ends_the_run(openai_agents: Path, tmp_path: Path) -> None:
    turns = [[call("look_up", "Bern")], [{"fail": "server_error", "times": 9}]]
    async with scripted(tmp_path / "run", turns) as served:
        ended = await end_of_client(openai_agents, tmp_path, served)
    assert (ended.code, ended.output) == (1, b"")
    assert "terminal event `response.failed`. status=failed; error=" in ended.complaint
    assert served.frames()[-1].frame["type"] == "response.failed"
