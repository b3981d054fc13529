"""Scripts: what the model says, written down part by part.

    turns[n]: reasoning | text | call | raw_tokens | repeat | stall_ms | fail (times), in order

Turn n of a Response says `turns[n]`; after the last one it says "done". A turn must hold something
that is said (a text, raw tokens, a repeat or a call), or it would leave no item and never count; a
turn that only fails says "done" once its faults are behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import cycle, islice
from typing import Final

import msgspec
from msgspec import Raw, Struct

from agentloop.behaviors.api import Turn
from agentloop.engine.api import Fault, Part, Sample, Script, Stall
from agentloop.errors import ProtocolError
from agentloop.tokens.frame import CallKind
from agentloop.tokens.render import (
    WEB_SEARCH,
    Said,
    SaidCall,
    SaidReasoning,
    SaidText,
    SaidTokens,
    render_turn,
)
from agentloop.tokens.vocabulary import vocabulary
from agentloop.wire.items import FunctionTool
from agentloop.wire.requests import ScriptedCall, ScriptedPart, ScriptedRepeat

DONE: Final = "done"
TOKEN_ID_MAX: Final = 201_087  # the last id of o200k_harmony
STALL_MS_MAX: Final = 86_400_000
REPEAT_TOKENS_MAX: Final = 131_072  # of one turn: a few bytes must not fill the memory

# A fault with any other code is not retryable.
IS_RETRYABLE: Final = {"overloaded": True, "server_error": False}

_KINDS: Final = tuple(name for name in ScriptedPart.__struct_fields__ if name != "times")
_SPOKEN: Final = ("text", "call", "raw_tokens", "repeat")
_REPEAT_CHARS_MAX: Final = 1 << 20


class Scripted:
    """Says a script.

    Args:
        turns: the script.
        where: the path of `turns` in what holds it, for errors.

    Raises:
        ProtocolError: the script cannot be said; message and `param` give the part's path.
    """

    def __init__(
        self, turns: Sequence[Sequence[ScriptedPart]], where: str = "simulation.turns"
    ) -> None:
        for number, parts in enumerate(turns):
            _check_turn(parts, f"{where}[{number}]")
        digest = blake2b(msgspec.json.encode(turns), digest_size=16).hexdigest()
        self.key = f"script-{digest}"
        self._turns = [*map(_sayable, turns), [ScriptedPart(text=DONE)]]
        self._contents = [msgspec.json.encode(parts) for parts in self._turns]
        self._rendered: dict[bytes, tuple[list[CallKind], list[Sample]]] = {}

    def plan(self, turn: Turn) -> Script:
        number = min(turn.number, len(self._turns) - 1)
        samples = iter(self._samples(number, turn.tools))
        parts: list[Part] = []
        for part in self._turns[number]:
            if part.stall_ms is not None:
                parts.append(Stall(part.stall_ms / 1000))
            elif part.fail is None:
                parts.append(next(samples))
            elif turn.attempt < part.times:
                parts.append(Fault(part.fail, IS_RETRYABLE.get(part.fail, False)))
        return Script(tuple(parts))

    def _samples(self, number: int, tools: Sequence[FunctionTool | Raw]) -> list[Sample]:
        """The turn's samples; turns that say the same are rendered once, while their calls stay of
        the same kinds."""
        parts = self._turns[number]
        kinds = [kind_of(part.call.name, tools) for part in parts if part.call is not None]
        content = self._contents[number]
        if content not in self._rendered or self._rendered[content][0] != kinds:
            said = list(_said(parts, kinds))
            self._rendered[content] = kinds, [Sample(tuple(ids)) for ids in render_turn(said)]
        return self._rendered[content][1]


def _sayable(parts: Sequence[ScriptedPart]) -> list[ScriptedPart]:
    """The turn as it is said: silent reasoning leaves no trace, a mere failure ends well."""
    kept = [part for part in parts if part.reasoning != ""]
    return kept if _is_spoken(kept) else [*kept, ScriptedPart(text=DONE)]


def _said(parts: Sequence[ScriptedPart], kinds: Sequence[CallKind]) -> Iterator[Said]:
    kinds_left = iter(kinds)
    for part in parts:
        if part.reasoning is not None:
            yield SaidReasoning(part.reasoning)
        elif part.text is not None:
            yield SaidText(part.text)
        elif part.call is not None:
            yield SaidCall(part.call.name, _arguments(part.call), next(kinds_left))
        elif part.raw_tokens is not None:
            yield SaidTokens(tuple(part.raw_tokens))
        elif part.repeat is not None:
            yield SaidTokens(repeated_ids(part.repeat))


def _arguments(call: ScriptedCall) -> str:
    """JSON with the keys in the script's order; a string as it is."""
    if isinstance(call.arguments, str):
        return call.arguments
    return msgspec.json.encode(call.arguments).decode()


def repeated_ids(repeat: ScriptedRepeat) -> tuple[int, ...]:
    """Exactly `repeat.tokens` ids of the text over and over.

    Copies are tokenized together, as a client's history will be when it comes back: neighbours may
    merge. Only where that takes too many characters are the ids themselves repeated.
    """
    encode = vocabulary().encode
    ids = encode(repeat.text)
    copies = repeat.tokens // len(ids) + 1
    while len(ids) < repeat.tokens and copies * len(repeat.text) <= _REPEAT_CHARS_MAX:
        ids = encode(repeat.text * copies)
        copies *= 2
    return tuple(islice(cycle(ids), repeat.tokens))


class _ToolHead(Struct):
    type: str = ""
    name: object = None


_tool_head_decoder = msgspec.json.Decoder(_ToolHead)


def kind_of(name: str, tools: Sequence[FunctionTool | Raw]) -> CallKind:
    """What a call of this name is, by the tools that the request listed; else a function call."""
    if any(isinstance(tool, FunctionTool) and tool.name == name for tool in tools):
        return "function_call"
    for tool in tools:
        if isinstance(tool, Raw):
            head = _tool_head_decoder.decode(tool)
            if head.type == "custom" and head.name == name:
                return "custom_tool_call"
            # The type may carry a date or more: `web_search_preview`.
            if name == WEB_SEARCH and head.type.startswith(WEB_SEARCH):
                return "hosted_call"
    return "function_call"


def _is_spoken(parts: Sequence[ScriptedPart]) -> bool:
    return any(getattr(part, name) is not None for part in parts for name in _SPOKEN)


def _check_turn(parts: Sequence[ScriptedPart], path: str) -> None:
    for index, part in enumerate(parts):
        for problem in _problems(part):
            raise _refused(f"{path}[{index}]", problem)
    if not _is_spoken(parts) and not any(part.fail for part in parts):
        raise _refused(path, f"a turn must hold a text or a call: one of {', '.join(_SPOKEN)}")
    if sum(part.repeat.tokens for part in parts if part.repeat) > REPEAT_TOKENS_MAX:
        raise _refused(path, f"a turn repeats at most {REPEAT_TOKENS_MAX} tokens")


def _refused(path: str, problem: str) -> ProtocolError:
    return ProtocolError(f"{path}: {problem}", param=path)


def _problems(part: ScriptedPart) -> Iterator[str]:
    present = [name for name in _KINDS if getattr(part, name) is not None]
    if len(present) != 1:
        found = " and ".join(present) or "none"
        yield f"a part has exactly one of {', '.join(_KINDS)}; found {found}"
    if part.times != 1 and part.fail is None:
        yield "times goes only with fail"
    if part.times < 1:
        yield f"times must be at least 1, not {part.times}"
    if part.fail == "":
        yield "fail must name an error code, such as server_error"
    if part.stall_ms is not None and not 0 <= part.stall_ms <= STALL_MS_MAX:
        yield f"stall_ms must be from 0 to {STALL_MS_MAX}, not {part.stall_ms:g}"
    if part.call is not None and part.call.name.split() != [part.call.name]:
        yield f"call.name must be one word, not {part.call.name!r}"
    if part.repeat is not None and not (part.repeat.text and part.repeat.tokens >= 1):
        yield "repeat needs a text and at least 1 token"
    for token_id in part.raw_tokens or ():
        if not 0 <= token_id <= TOKEN_ID_MAX:
            yield f"raw_tokens must be ids from 0 to {TOKEN_ID_MAX}, not {token_id}"
