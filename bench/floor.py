"""The floor's events: what a scripted turn makes, without anything that decides or remembers.

A script is cut into deltas when its create comes. A turn then costs what no server can save: one
Struct and one encoding for each event, numbered as it is made.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from agentloop.behaviors.scripted import DONE, repeated_ids
from agentloop.clock import WallClock
from agentloop.ids import IdSource, derive
from agentloop.tokens.vocabulary import vocabulary
from agentloop.wire import codec, events, items
from agentloop.wire.requests import Append, Create, ScriptedPart

_USAGE: Final = events.Usage(2_000, events.InputDetails(1_900), 30, events.OutputDetails(12), 2_030)
_TURNS_KEPT: Final = 64

Saying = Generator[events.Numbered, None, items.AnyItem]


class Said(Struct):
    """An item to say. `name` is the called tool's; `deltas` is the text, a token each."""

    kind: str
    text: str
    deltas: list[str]
    name: str = ""


@lru_cache(_TURNS_KEPT)
def cut(encoded: bytes) -> list[Said]:
    """A scripted turn (JSON) as an engine of one token a step would give it."""
    encode = vocabulary().encode
    said = []
    for part in msgspec.json.decode(encoded, type=list[ScriptedPart]):
        if part.reasoning is not None:
            said.append(_cut("reasoning", encode(part.reasoning)))
        elif part.call is not None:
            arguments = codec.encode(part.call.arguments).decode()
            said.append(_cut("call", encode(arguments), part.call.name))
        elif part.repeat is not None:
            said.append(_cut("message", repeated_ids(part.repeat)))
        else:
            said.append(_cut("message", encode(part.text or "")))
    return said


def _cut(kind: str, ids: Sequence[int], name: str = "") -> Said:
    decoder = vocabulary().decoder()
    texts = [*map(decoder.add_token, ids), decoder.flush()]
    deltas = [text for text in texts if text]
    return Said(kind, "".join(deltas), deltas, name)


class Session:
    """One scripted Response: the events of its create and of each append."""

    def __init__(self, create: Create) -> None:
        self._create = create
        self._id = IdSource().draw("resp")
        self._index = 0
        self._sequence_number = 0
        script = create.simulation.turns if create.simulation else []
        self._turns = iter([cut(codec.encode(parts)) for parts in script])
        self._done = cut(codec.encode([ScriptedPart(text=DONE)]))

    def begin(self) -> Iterator[bytes]:
        """`response.created`, `response.in_progress` and the first turn."""
        create = self._create
        begun = events.ResponseObject(
            id=self._id,
            created_at=int(WallClock().timestamp()),
            status="in_progress",
            model=create.model,
            tools=create.tools,
            reasoning={"effort": "medium", "summary": None},
        )
        created, in_progress = events.ResponseCreated(0, begun), events.ResponseInProgress(0, begun)
        yield from self._encoded([created, in_progress])
        yield from self._encoded(self._turn())

    def accept(self, append: Append) -> Iterator[bytes]:
        """The acceptance of an append, and the turn that it causes."""
        accepted = events.AppendAccepted(0, self._id, append.event_id, [])
        yield from self._encoded([accepted])
        yield from self._encoded(self._turn())

    def _encoded(self, made: Iterable[events.Numbered]) -> Iterator[bytes]:
        encode, number = codec.encode, self._sequence_number
        for event in made:
            event.sequence_number = number
            number += 1
            yield encode(event)
        self._sequence_number = number

    def _turn(self) -> Iterator[events.Numbered]:
        said = next(self._turns, self._done)
        has_call = any(each.kind == "call" for each in said)
        output: list[items.AnyItem] = []
        for each in said:
            if each.kind == "reasoning":
                item = yield from self._reasoning(each)
            elif each.kind == "call":
                item = yield from self._call(each)
            else:
                item = yield from self._message(each, "commentary" if has_call else "final_answer")
            yield events.OutputItemDone(0, self._index, item)
            output.append(item)
            self._index += 1
        yield events.ResponseDone(0, self._paused(output))

    def _paused(self, output: list[items.AnyItem]) -> events.PausedResponse:
        pending = [
            events.PendingCall(item.call_id, item.name)
            for item in output
            if isinstance(item, items.FunctionCall)
        ]
        return events.PausedResponse(
            id=self._id,
            state="suspended" if pending else "idle",
            output=output,
            usage=_USAGE,
            usage_total=_USAGE,
            pending_tool_calls=pending,
        )

    def _reasoning(self, said: Said) -> Saying:
        index, text = self._index, said.text
        item_id = derive("rs", self._id, index)
        part = items.ReasoningText(text=text)
        begun = items.Reasoning(id=item_id, summary=[], content=[], status="in_progress")
        yield events.OutputItemAdded(0, index, begun)
        yield events.ContentPartAdded(0, item_id, index, 0, items.ReasoningText())
        for delta in said.deltas:
            yield events.ReasoningTextDelta(0, item_id, index, 0, delta)
        yield events.ReasoningTextDone(0, item_id, index, 0, text)
        yield events.ContentPartDone(0, item_id, index, 0, part)
        return items.Reasoning(id=item_id, summary=[], content=[part], status="completed")

    def _message(self, said: Said, phase: str) -> Saying:
        index, text = self._index, said.text
        item_id = derive("msg", self._id, index)
        part = items.output_text(text)
        yield events.OutputItemAdded(0, index, _message(item_id, phase, [], "in_progress"))
        yield events.ContentPartAdded(0, item_id, index, 0, items.output_text(""))
        for delta in said.deltas:
            yield events.OutputTextDelta(0, item_id, index, 0, delta)
        yield events.OutputTextDone(0, item_id, index, 0, text)
        yield events.ContentPartDone(0, item_id, index, 0, part)
        return _message(item_id, phase, [part], "completed")

    def _call(self, said: Said) -> Saying:
        index, text = self._index, said.text
        item_id, call_id = derive("fc", self._id, index), derive("call", self._id, index)
        yield events.OutputItemAdded(0, index, _call(item_id, call_id, said, "", "in_progress"))
        for delta in said.deltas:
            yield events.ArgumentsDelta(0, item_id, index, delta)
        yield events.ArgumentsDone(0, item_id, index, said.name, text)
        return _call(item_id, call_id, said, text, "completed")


def _message(
    item_id: str, phase: str, content: list[items.ContentPart], status: str
) -> items.Message:
    return items.Message(id=item_id, role="assistant", content=content, status=status, phase=phase)


def _call(item_id: str, call_id: str, said: Said, text: str, status: str) -> items.FunctionCall:
    return items.FunctionCall(
        id=item_id, call_id=call_id, name=said.name, arguments=text, status=status
    )
