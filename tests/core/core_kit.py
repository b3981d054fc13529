"""What the tests of the core share: a Response to drive, admitted entries, and deep comparison."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from agentloop.core.calls import Call
from agentloop.core.context import EMPTY, Context, Entry
from agentloop.core.fold import Fold, replay
from agentloop.core.records import AnyRecord, Config
from agentloop.core.response import Response
from agentloop.core.states import State
from agentloop.engine.api import TokenIds
from agentloop.tokens.render import (
    Said,
    SaidCall,
    SaidText,
    render_items,
    render_result,
    render_turn,
)
from agentloop.tokens.vocabulary import FIRST_SPECIAL, spelling, vocabulary
from agentloop.wire.items import CustomToolCallOutput, FunctionCallOutput, Message
from agentloop.wire.requests import AgentLoopOptions

RESPONSE_ID = "resp_0123456789abcdef"
SUFFIX = "0123456789abcdef"
HOSTED = frozenset({"lookup", "web_search"})
FIRST, SECOND = "call_0123456789abcdef_0", "call_0123456789abcdef_1"


def make_config(**fields: Any) -> Config:
    """A parking Response; `agent_loop` options go in by their own names."""
    options = {
        name: fields.pop(name) for name in AgentLoopOptions.__struct_fields__ & fields.keys()
    }
    defaults: dict[str, Any] = {"parks": True, "says_done": True, "hosted": HOSTED}
    return Config(
        id=RESPONSE_ID,
        created_at=1_700_000_000,
        model="sim",
        options=AgentLoopOptions(**options),
        **{**defaults, **fields},
    )


@cache
def message(text: str) -> Entry:
    """An admitted user message."""
    item = Message(role="user", content=text)
    return Entry(item, render_items([item]))


def output(call_id: str, name: str, text: str, kind: str = "function_call") -> Entry:
    """An admitted tool output; a new item each time, since a Response may put its id in."""
    item_type = CustomToolCallOutput if kind == "custom_tool_call" else FunctionCallOutput
    item = item_type(call_id=call_id, output=text)
    return Entry(item, render_items([item], {call_id: name}))


def search_result(text: str) -> Entry:
    """A hosted search's result: tokens only."""
    return Entry(None, render_result(text))


def answer(call: Call, text: str = "ok") -> Entry:
    """The output of a function call."""
    return output(call.call_id, call.name, text)


def hosted_answer(call: Call, text: str = "found") -> Entry:
    """What the server's own tool gives."""
    return answer(call, text) if call.has_output_item else search_result(text)


def shell(text: str = "ls") -> SaidCall:
    """A client's function call."""
    return SaidCall("shell", '{"cmd":"' + text + '"}')


def lookup(text: str = "a") -> SaidCall:
    """A call of a function tool that the server runs."""
    return SaidCall("lookup", '{"key":"' + text + '"}')


def search(text: str = "a") -> SaidCall:
    """A hosted search."""
    return SaidCall("web_search", '{"query":"' + text + '"}', "hosted_call")


def patch(text: str = "*** Begin Patch") -> SaidCall:
    """A client's freeform call."""
    return SaidCall("apply_patch", text, "custom_tool_call")


def nothing() -> None:
    """A refusal that nobody waits for."""


def ids_of(*said: Said) -> list[int]:
    """The ids of one sampled turn."""
    return [token_id for part in render_turn(said) for token_id in part]


def sample(response: Response, *steps: Sequence[int]) -> None:
    """Engine steps of these ids, at most 255 each."""
    joined = TokenIds("I", [token_id for step in steps for token_id in step])
    response.sample(joined, bytes(map(len, steps)))


def spell(ids: Sequence[int]) -> str:
    """Ids as text, special ones spelled out."""
    pieces: list[str] = []
    ordinary: list[int] = []
    for token_id in ids:
        if token_id < FIRST_SPECIAL:
            ordinary.append(token_id)
        else:
            pieces += [vocabulary().decode(ordinary), spelling(token_id)]
            ordinary = []
    return "".join([*pieces, vocabulary().decode(ordinary)])


def freeze(value: object) -> object:
    """A deep, comparable copy of any state; a decoder counts by its type only."""
    if isinstance(value, Struct):
        fields = value.__struct_fields__
        return (type(value).__name__, *(freeze(getattr(value, name)) for name in fields))
    if isinstance(value, array):
        return tuple(value)
    if isinstance(value, Mapping):
        return tuple((key, freeze(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(freeze(each) for each in value)
    if isinstance(value, Enum | str | bytes | int | float | frozenset | None):
        return value
    if isinstance(value, Context):
        return freeze((value.ids_from(0), value.items(), value.turn_count))
    names = getattr(type(value), "__slots__", None) or getattr(value, "__dict__", None)
    if names is None or not type(value).__module__.startswith("agentloop"):
        return type(value).__name__
    return (type(value).__name__, *((name, freeze(getattr(value, name))) for name in names))


class Driven:
    """A Response with everything that it has committed and said."""

    def __init__(self, config: Config | None = None, parent: Context = EMPTY) -> None:
        self.config = config or make_config()
        self.response = Response(self.config, parent)
        self.records: list[AnyRecord] = []
        self.frames: list[bytes] = []

    def take(self) -> list[dict[str, Any]]:
        """The events of what was committed since the last call."""
        fresh: list[bytes] = []
        for commit in self.response.take():
            assert commit.record.first_seq == len(self.frames) + len(fresh)
            assert commit.record.event_count == len(commit.frames)
            self.records.append(commit.record)
            fresh += commit.frames
        self.frames += fresh
        return [msgspec.json.decode(frame) for frame in fresh]

    def create(self, *texts: str) -> list[dict[str, Any]]:
        self.response.create(TokenIds("I", [1, 2, 3]), [message(text) for text in texts])
        return self.take()

    def turn(self, *said: Said, reason: str = "stop") -> list[dict[str, Any]]:
        """One whole turn up to its finish; hosted calls and the stop are not done yet."""
        self.response.start_turn(0)
        sample(self.response, ids_of(*said))
        self.response.end_turn(reason, 0)
        return self.take()

    def whole_turn(self, *said: Said) -> list[dict[str, Any]]:
        """A turn, the results of its hosted calls, and the stop."""
        made = self.turn(*said)
        for call in self.response.calls.hosted():
            self.response.answer_hosted(call, hosted_answer(call))
        self.response.stop()
        return [*made, *self.take()]

    def append(
        self, *entries: Entry, key: str | None = None, payload: bytes = b"p"
    ) -> dict[str, Any]:
        """An append as a lane makes it; returns the acceptance."""
        accepted = self.response.repeat_of(key, payload)
        if accepted is None:
            accepted = self.response.append(list(enumerate(entries)), key, payload)
        self.take()
        decoded: dict[str, Any] = msgspec.json.decode(accepted)
        return decoded

    def replayed(self) -> list[bytes]:
        """The events made again from the records."""
        return replay(self.config, self.records, self.response.parent)

    def refolded(self) -> Fold:
        """A fold made again from the records."""
        fold = Fold(self.config, self.response.parent)
        for record in self.records:
            fold.apply(record)
        return fold

    def prompt(self) -> str:
        """The next prompt, spelled out."""
        return spell(self.response.prompt_from(0))


def driven(*said: Said, **fields: Any) -> Driven:
    """A Response after its create and one whole turn."""
    subject = Driven(make_config(**fields))
    subject.create("go")
    subject.whole_turn(*said)
    return subject


def in_state(state: str, **fields: Any) -> Driven:
    """A Response that is in this state, the first turn's call announced where there is one."""
    subject = Driven(make_config(**fields))
    subject.create("go")
    match state:
        case "sampling":
            subject.response.start_turn(0)
            sample(subject.response, ids_of(shell()))
        case "suspended":
            subject.whole_turn(shell())
        case "idle":
            subject.whole_turn(SaidText("fine"))
        case "completed" | "failed" | "cancelled" | "incomplete":
            subject.whole_turn(SaidText("fine"))
            if state == "failed":
                subject.append(message("more"))
            subject.response.end(state)
        case _:
            assert state == "created"
    subject.take()
    assert subject.response.state is State(state)
    return subject


def types_of(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """The events' types without their common beginning."""
    return [event["type"].removeprefix("response.") for event in events]


def at_work(*said: Any, **fields: Any) -> Driven:
    """A Response within its first turn, everything sampled, not finished."""
    subject = Driven(make_config(**fields))
    subject.create("go")
    subject.response.start_turn(0)
    sample(subject.response, ids_of(*said))
    subject.take()
    return subject


def stop(subject: Driven) -> list[dict[str, Any]]:
    """The turn's finish and stop."""
    subject.response.end_turn("stop", 0)
    subject.response.stop()
    return subject.take()


def cancelled(subject: Driven) -> dict[str, Any]:
    """The terminal of a cancel."""
    subject.response.cancel()
    (terminal,) = subject.take()
    return terminal
