"""Recorded agent runs, said again turn by turn.

Two kinds of files are read:

- `.json`, of mini-swe-agent: an assistant's message is a thought and one command, fenced as bash.
  The command becomes a `shell` call. A message without exactly one such block was refused by the
  recorded agent; it is said whole, with a call of an empty command, so that the run goes on.
- `.traj`, of SWE-agent: the tool calls of its function calling format as they are; in its other
  format the action becomes a `shell` call.

A replay has as many turns as the recording has assistant messages. The last one, which submits, is
said as text with the command in it instead of a call, so that the session ends there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from agentloop.behaviors.scripted import Scripted
from agentloop.errors import ConfigError, ProtocolError
from agentloop.wire import codec
from agentloop.wire.items import Content, text_of
from agentloop.wire.requests import ScriptedCall, ScriptedPart

SHELL: Final = "shell"

_BASH_BLOCK = re.compile(r"```bash[^\S\n]*\n(.*?)\n```", re.DOTALL)

_File = TypeVar("_File")


class TurnUsage(Struct, frozen=True):
    """What the provider counted, in tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class TrajectoryTurn(Struct, frozen=True, kw_only=True):
    """One recorded turn.

    Attributes:
        text: what the model wrote beside its reasoning and its command.
        command: the action in the recorded agent's own words; empty where there was none.
        output: what the tool answered, as the model read it; empty where nothing was recorded.
        duration_s: the tool's time. mini-swe-agent notes only when the model answered, in whole
            seconds, so there it is the time to the next answer: an upper bound.
        usage: None where it was not recorded.
    """

    text: str
    call: ScriptedCall
    command: str
    output: str
    reasoning: str = ""
    duration_s: float = 0.0
    usage: TurnUsage | None = None


class Trajectory(Struct, frozen=True):
    """One recorded run."""

    instance_id: str
    system: str
    task: str
    turns: list[TrajectoryTurn]


class Replay(Scripted):
    """Says what the recorded model said."""

    def __init__(self, trajectory: Trajectory) -> None:
        super().__init__(to_script(trajectory), "trajectory")


def to_script(trajectory: Trajectory) -> list[list[ScriptedPart]]:
    """The run as a script, as a request's `simulation.turns` takes it."""
    *turns, last = trajectory.turns
    script = [[*_thoughts(turn), ScriptedPart(call=turn.call)] for turn in turns]
    command = f"```\n{last.command}\n```" if last.command else ""
    ending = "\n\n".join(text for text in (last.text, command) if text)
    return [*script, [*_reasoning(last), ScriptedPart(text=ending)]]


def _thoughts(turn: TrajectoryTurn) -> list[ScriptedPart]:
    text = [ScriptedPart(text=turn.text)] if turn.text else []
    return [*_reasoning(turn), *text]


def _reasoning(turn: TrajectoryTurn) -> list[ScriptedPart]:
    return [ScriptedPart(reasoning=turn.reasoning)] if turn.reasoning else []


def recorded_outputs(trajectory: Trajectory) -> list[tuple[str, str, float]]:
    """Name, output and duration in seconds of each call that `to_script` makes, in order."""
    return [(turn.call.name, turn.output, turn.duration_s) for turn in trajectory.turns[:-1]]


def load_trajectory(path: Path) -> Trajectory:
    """Read a recorded run.

    Raises:
        ConfigError: the file cannot be read or is not such a recording; the message says why.
    """
    reader = READERS.get(path.suffix)
    if reader is None:
        raise ConfigError(f"{path}: a trajectory's name ends in {' or '.join(READERS)}")
    try:
        return reader(path.stem, path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ProtocolError as error:
        raise ConfigError(f"{path} is not a recorded trajectory: {error.message}") from error


# -- mini-swe-agent --------------------------------------------------------------------------------


class _Extra(Struct, frozen=True):
    created: float | None = None
    reasoning: str | None = None
    usage: TurnUsage | None = None


class _Message(Struct):
    role: str
    content: Content
    extra: _Extra = _Extra()


class _MiniFile(Struct):
    messages: list[_Message]
    instance_id: str = ""


_mini_decoder = msgspec.json.Decoder(_MiniFile)


def _read_mini(stem: str, data: bytes) -> Trajectory:
    recording = codec.decode_as(_mini_decoder, data, "recording")
    messages = recording.messages
    exchanges = _exchanges([message.role for message in messages])
    created = [messages[index].extra.created for index in exchanges]
    turns = [
        _mini_turn(messages[index], _content_after(messages, index), duration_s)
        for index, duration_s in zip(exchanges, [*_gaps_s(created), 0.0], strict=True)
    ]
    system, task = (text_of(message.content) for message in messages[:2])
    return Trajectory(recording.instance_id or stem, system, task, turns)


def _mini_turn(message: _Message, output: str, duration_s: float) -> TrajectoryTurn:
    content = text_of(message.content)
    commands: list[str] = _BASH_BLOCK.findall(content)
    command = commands[0] if len(commands) == 1 else ""
    return TrajectoryTurn(
        text=_BASH_BLOCK.sub("", content).strip() if command else content,
        call=ScriptedCall(SHELL, {"cmd": command}),
        command=command,
        output=output,
        reasoning=message.extra.reasoning or "",
        duration_s=duration_s,
        usage=message.extra.usage,
    )


def _gaps_s(times: Sequence[float | None]) -> list[float]:
    """Seconds from each to the next; 0 where one is unknown or the clock went back."""
    return [
        0.0 if now is None or following is None else max(0.0, following - now)
        for now, following in pairwise(times)
    ]


# -- SWE-agent -------------------------------------------------------------------------------------


class _Function(Struct):
    name: str
    arguments: str = "{}"


class _ToolCall(Struct):
    function: _Function


class _Entry(Struct):
    role: str
    content: Content
    is_demo: bool = False
    thought: str | None = None
    action: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Step(Struct):
    observation: str = ""
    execution_time: float = 0.0


class _SweFile(Struct):
    history: list[_Entry]
    trajectory: list[_Step]


_swe_decoder = msgspec.json.Decoder(_SweFile)


def _read_swe_agent(stem: str, data: bytes) -> Trajectory:
    recording = codec.decode_as(_swe_decoder, data, "recording")
    history = [entry for entry in recording.history if not entry.is_demo]
    exchanges = _exchanges([entry.role for entry in history])
    if len(exchanges) != len(recording.trajectory):
        raise ProtocolError(
            f"history has {len(exchanges)} assistant messages, "
            f"trajectory has {len(recording.trajectory)} steps"
        )
    turns = [
        _swe_turn(history[index], _content_after(history, index) or step.observation, step)
        for index, step in zip(exchanges, recording.trajectory, strict=True)
    ]
    system, task = (text_of(entry.content) for entry in history[:2])
    return Trajectory(stem, system, task, turns)


def _swe_turn(entry: _Entry, output: str, step: _Step) -> TrajectoryTurn:
    command = (entry.action or "").strip()
    calls = [ScriptedCall(c.function.name, c.function.arguments) for c in entry.tool_calls or ()]
    if len(calls) > 1:
        raise ProtocolError(f"an assistant message has {len(calls)} tool calls; one is supported")
    return TrajectoryTurn(
        text=(text_of(entry.content) if entry.thought is None else entry.thought).strip(),
        call=calls[0] if calls else ScriptedCall(SHELL, {"cmd": command}),
        command=command,
        output=output,
        duration_s=max(0.0, step.execution_time),
    )


# -- both ------------------------------------------------------------------------------------------


def _exchanges(roles: Sequence[str]) -> list[int]:
    """Where the assistant's messages stand: after system and task, each but the last answered.

    Raises:
        ProtocolError: the messages come in another order.
    """
    if list(roles[:2]) != ["system", "user"]:
        raise ProtocolError("the messages must start with system and user")
    exchanges = list(range(2, len(roles), 2))
    for index in range(2, len(roles)):
        expected = ("user", "tool") if index % 2 else ("assistant",)
        if roles[index] not in expected:
            raise ProtocolError(f"message {index} is of role {roles[index]!r}, not {expected[0]!r}")
    if not exchanges:
        raise ProtocolError("no assistant message")
    return exchanges


def _content_after(messages: Sequence[_Message | _Entry], index: int) -> str:
    return text_of(messages[index + 1].content) if index + 1 < len(messages) else ""


READERS: Final[dict[str, Callable[[str, bytes], Trajectory]]] = {
    ".json": _read_mini,
    ".traj": _read_swe_agent,
}
