"""Replays: as many turns as were recorded, what was said, and what the tools answered."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentloop.behaviors.replay import (
    Replay,
    Trajectory,
    TurnUsage,
    load_trajectory,
    recorded_outputs,
    to_script,
)
from agentloop.errors import ConfigError
from tests.behaviors.behavior_kit import heard, turn_of


def said(role: str, content: str, **extra: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "extra": extra}


def write(path: Path, content: Any) -> Path:
    path.write_bytes(msgspec.json.encode(content))
    return path


PROMPT = [said("system", "You help."), said("user", "Mend it.")]
USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "cached_tokens": 2, "reasoning_tokens": 1}
MINI = [
    *PROMPT,
    said("assistant", "I look.\n\n```bash\nls -a\n```", created=100, reasoning="hm", usage=USAGE),
    said("user", "<output>a.py</output>"),
    said("assistant", "```bash\nls\n```\nor\n```bash\npwd\n```", created=103),
    said("user", "one action, please"),
    said("assistant", "```bash\ncat a.py\n```", created=102),
    said("user", "<output>1</output>"),
    said("assistant", "All done.\n\n```bash\necho SUBMIT\n```", created=110),
    said("user", "the diff"),
]


@pytest.fixture
def mini(tmp_path: Path) -> Trajectory:
    return load_trajectory(
        write(tmp_path / "a.json", {"instance_id": "org__repo-1", "messages": MINI})
    )


def test_what_was_recorded(mini: Trajectory) -> None:
    assert (mini.instance_id, mini.system, mini.task) == ("org__repo-1", "You help.", "Mend it.")
    assert [turn.command for turn in mini.turns] == ["ls -a", "", "cat a.py", "echo SUBMIT"]
    assert [turn.usage for turn in mini.turns] == [TurnUsage(9, 5, 2, 1), None, None, None]


def test_a_replay_says_what_the_model_said(mini: Trajectory) -> None:
    replay = Replay(mini)
    assert [heard(replay.plan(turn_of(number))) for number in range(5)] == [
        [
            ("reasoning", "", "hm"),
            ("message", "", "I look."),
            ("function_call", "shell", '{"cmd":"ls -a"}'),
        ],
        [
            ("message", "", "```bash\nls\n```\nor\n```bash\npwd\n```"),
            ("function_call", "shell", '{"cmd":""}'),
        ],
        [("function_call", "shell", '{"cmd":"cat a.py"}')],
        [("message", "", "All done.\n\n```\necho SUBMIT\n```")],
        [("message", "", "done")],
    ]


def test_each_call_has_its_output_and_time(mini: Trajectory) -> None:
    """The recorded clock went back once: no time is negative."""
    assert recorded_outputs(mini) == [
        ("shell", "<output>a.py</output>", 3.0),
        ("shell", "one action, please", 0.0),
        ("shell", "<output>1</output>", 8.0),
    ]


def test_unknown_times_and_names(tmp_path: Path) -> None:
    messages = [*PROMPT, said("assistant", "a"), said("user", "b"), said("assistant", "c")]
    trajectory = load_trajectory(write(tmp_path / "stem.json", {"messages": messages}))
    assert trajectory.instance_id == "stem"
    assert recorded_outputs(trajectory) == [("shell", "b", 0.0)]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.txt", {"messages": MINI}, "ends in .json or .traj"),
        ("a.json", {"turns": []}, "missing required field `messages`"),
        ("a.json", {"messages": [*PROMPT, said("assistant", "a") | {"content": 5}]}, "messages[2]"),
        ("a.json", {"messages": MINI[1:]}, "must start with system and user"),
        ("a.json", {"messages": PROMPT}, "no assistant message"),
        ("a.json", {"messages": [*MINI, said("user", "b")]}, "message 10 is of role 'user'"),
        ("a.json", {"messages": [*MINI[:3], *MINI[2:]]}, "message 3 is of role 'assistant'"),
        ("a.traj", {"history": MINI, "trajectory": [{}]}, "4 assistant messages"),
        ("a.traj", {"history": MINI}, "missing required field `trajectory`"),
    ],
)
def test_a_bad_file_is_named_with_a_reason(
    tmp_path: Path, name: str, content: Any, told: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(ConfigError) as refusal:
        load_trajectory(path)
    assert refusal.value.message.startswith(str(path))
    assert told in refusal.value.message


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.traj cannot be read: No such file"):
        load_trajectory(tmp_path / "gone.traj")


def call_of(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def acted(thought: str, action: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return {
        "role": "assistant", "content": thought, "thought": thought, "action": action,
        "tool_calls": list(calls),
    }  # fmt: skip


@pytest.fixture
def swe_agent() -> dict[str, Any]:
    history = [
        PROMPT[0],
        said("user", "a demonstration") | {"is_demo": True},
        PROMPT[1],
        acted("I open it.", "open a.py", call_of("open", '{"path": "a.py"}')),
        {"role": "tool", "content": [{"type": "text", "text": "opened"}]},
        acted("I run it.\n", "python a.py\n"),
        said("user", ""),
        acted("I submit.", "submit", call_of("submit", "{}")),
    ]
    steps = [{"execution_time": 0.25}, {"observation": "ran", "execution_time": 2}, {}]
    return {"history": history, "trajectory": steps}


def test_swe_agent_runs(tmp_path: Path, swe_agent: dict[str, Any]) -> None:
    trajectory = load_trajectory(write(tmp_path / "run-1.traj", swe_agent))
    assert (trajectory.instance_id, trajectory.task) == ("run-1", "Mend it.")
    assert recorded_outputs(trajectory) == [("open", "opened", 0.25), ("shell", "ran", 2.0)]
    replay = Replay(trajectory)
    assert [heard(replay.plan(turn_of(number))) for number in range(3)] == [
        [("message", "", "I open it."), ("function_call", "open", '{"path": "a.py"}')],
        [("message", "", "I run it."), ("function_call", "shell", '{"cmd":"python a.py"}')],
        [("message", "", "I submit.\n\n```\nsubmit\n```")],
    ]


def test_swe_agent_turns_have_one_call(tmp_path: Path, swe_agent: dict[str, Any]) -> None:
    swe_agent["history"][3]["tool_calls"] *= 2
    path = write(tmp_path / "a.traj", swe_agent)
    with pytest.raises(ConfigError, match="has 2 tool calls"):
        load_trajectory(path)


@pytest.mark.traces
def test_every_recorded_run_has_its_number_of_turns(shared: Path) -> None:
    folder = shared / "traces/mini-swe-agent"
    with (folder / "index.csv").open() as index:
        turns = {row["instance_id"]: int(row["turns"]) for row in csv.DictReader(index)}
    assert len(turns) == 60
    for instance_id, count in turns.items():
        trajectory = load_trajectory(folder / f"{instance_id}.json")
        assert trajectory.instance_id == instance_id
        assert len(trajectory.turns) == len(to_script(trajectory)) == count
        assert len(recorded_outputs(trajectory)) == count - 1
        assert all(turn.output and turn.usage for turn in trajectory.turns)


@pytest.mark.traces
@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("mini-swe-agent/django__django-11163.json", 13),
        ("swe-agent/marshmallow-1867_function_calling.traj", 11),
        ("swe-agent/pydicom-1458_default.traj", 12),
    ],
)
def test_a_recorded_run_calls_in_each_turn_but_the_last(
    shared: Path, path: str, count: int
) -> None:
    replay = Replay(load_trajectory(shared / "traces" / path))
    calls = [
        sum(kind == "function_call" for kind, _, _ in heard(replay.plan(turn_of(number))))
        for number in range(count + 1)
    ]
    assert calls == [1] * (count - 1) + [0, 0]
    assert heard(replay.plan(turn_of(count - 1)))[-1][2] != "done"
    assert heard(replay.plan(turn_of(count)))[-1][2] == "done"
