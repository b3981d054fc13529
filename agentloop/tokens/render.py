"""Items to token ids: the canonical harmony rendering.

The ids are those of openai-harmony with `auto_drop_analysis=False`. A prompt is

    render_head(head) + render_items(items) + TURN_START

and what a simulated model samples after it, `render_turn(said)`, is exactly what `render_items`
writes for the same items later (once `as_history` has closed the turn), so that keeping the sampled
ids and rendering a history again lead to the same prompt.

`encode` may be a cache before the vocabulary: it is asked for whole texts of items only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, assert_never

from msgspec import Struct

from agentloop.engine.api import TokenIds
from agentloop.errors import ProtocolError, UnknownCall
from agentloop.tokens.frame import (
    MESSAGE_ENDS,
    TURN_START,
    CallKind,
    read_header,
    recipient_of,
    write_message,
)
from agentloop.tokens.typescript import Tool, canonical_json, canonical_text, tools_section
from agentloop.tokens.vocabulary import CALL, END, MESSAGE, RETURN, START, vocabulary
from agentloop.wire.items import (
    AnyItem,
    CallItem,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    FunctionTool,
    ItemReference,
    Message,
    Reasoning,
    UnknownItem,
    WebSearchCall,
    is_model_output,
    text_of,
)

Encode = Callable[[str], Iterable[int]]

WEB_SEARCH: Final = "web_search"
RESULT_PLACEHOLDER: Final = "[The result is no longer available.]"

_IDENTITY: Final = "You are ChatGPT, a large language model trained by OpenAI."
_KNOWLEDGE_CUTOFF: Final = "2024-06"
_CHANNELS: Final = (
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
_FUNCTION_CALLS: Final = "Calls to these tools must go to the commentary channel: 'functions'."
_INPUT_ROLES: Final = frozenset(("user", "developer", "system"))
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def _encode(text: str) -> list[int]:
    return vocabulary().encode(text)


class Head(Struct, frozen=True):
    """What stands before the items, one unit: tools change a line of the system message.

    Attributes:
        instructions: the developer's instructions; empty ones count as none.
        tools: function tools, and all others as their JSON.
        reasoning_effort: `low`, `medium` or `high`.
        date: the date that the model is told; fixed, so that equal heads have equal ids.
    """

    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    reasoning_effort: str = "medium"
    date: str = "2026-01-01"


def render_head(head: Head, *, encode: Encode = _encode) -> TokenIds[int]:
    """The system message, and the developer message where there are instructions or tools.

    `agentloop.tokens.typescript` says how tools are shown.

    Raises:
        ProtocolError: a tool's definition is not valid JSON, or nested too deeply.
    """
    ids = write_message("system", encode(_system_text(head)))
    sections = ["# Instructions", head.instructions] if head.instructions else []
    if head.tools:
        sections.append(tools_section(head.tools))
    if sections:
        ids += write_message("developer", encode("\n\n".join(sections)))
    return ids


def _system_text(head: Head) -> str:
    identity = f"{_IDENTITY}\nKnowledge cutoff: {_KNOWLEDGE_CUTOFF}\nCurrent date: {head.date}"
    has_functions = any(isinstance(tool, FunctionTool) for tool in head.tools)
    channels = f"{_CHANNELS}\n{_FUNCTION_CALLS}" if has_functions else _CHANNELS
    return f"{identity}\n\nReasoning: {head.reasoning_effort}\n\n{channels}"


def called_name(call: CallItem) -> str:
    """The name that a call's recipient and `names` carry: `NAME` or `NAMESPACE.NAME`."""
    if isinstance(call, FunctionCall) and call.namespace:
        return f"{call.namespace}.{call.name}"
    return call.name


def render_items(
    items: Sequence[AnyItem],
    names: Mapping[str, str] = _NOTHING,
    results: Mapping[str, str] = _NOTHING,
    *,
    turns: Mapping[str, int] = _NOTHING,
    encode: Encode = _encode,
) -> TokenIds[int]:
    """The ids of history items.

    An assistant's message is `commentary` where a call follows it in its turn, else `final`. The
    results of a turn's hosted calls stand at its end, where the loop puts them. A turn is a maximal
    run of model output; hosted calls divide it where `turns` says so, or else at the first item
    after them that is not a call. Rendering in pieces gives the ids of the whole exactly where no
    piece ends within such a run.

    Args:
        items: in order; no `item_reference` among them.
        names: call id → `called_name`, for outputs whose call is not in `items`.
        results: item id → the result's text, for hosted calls; else `RESULT_PLACEHOLDER`.
        turns: item id → number of its turn, where known.
        encode: text → ids.

    Raises:
        ProtocolError: an item cannot be rendered.
        UnknownCall: an output's call is neither in `items` nor in `names`.
    """
    known = {item.call_id: called_name(item) for item in items if isinstance(item, CallItem)}

    def name_of(call_id: str) -> str:
        name = known.get(call_id) or names.get(call_id)
        if name is None:
            raise UnknownCall(f"no call {call_id!r} precedes its output")
        return name

    ids = TokenIds("I")
    unanswered: list[WebSearchCall] = []
    channels = _channels(items, turns)
    for item, channel, following in zip(items, channels, [*items[1:], None], strict=False):
        ids += _render_item(item, channel, name_of, encode)
        if isinstance(item, WebSearchCall):
            unanswered.append(item)
        if unanswered and not _is_same_turn(unanswered[-1], following, turns):
            for call in unanswered:
                ids += render_result(results.get(call.id or ""), encode=encode)
            unanswered.clear()
    return ids


def render_result(result: str | None, *, encode: Encode = _encode) -> TokenIds[int]:
    """The ids of a hosted search's result; a fixed placeholder for None."""
    text = RESULT_PLACEHOLDER if result is None else result
    return _answer(WEB_SEARCH, encode(text))


def _channels(items: Sequence[AnyItem], turns: Mapping[str, int]) -> list[str]:
    """The channel of each item, were it an assistant's message."""
    channels: list[str] = []
    is_call_ahead = False
    turn_ahead = None
    for item in reversed(items):
        turn = _turn_of(item, turns)
        if turn is not None and turn_ahead is not None and turn != turn_ahead:
            is_call_ahead = False
        channels.append("commentary" if is_call_ahead else "final")
        is_call_ahead = is_model_output(item) and (is_call_ahead or _is_call(item))
        turn_ahead = turn
    channels.reverse()
    return channels


def _is_call(item: AnyItem) -> bool:
    return is_model_output(item) and not isinstance(item, Message | Reasoning)


def _turn_of(item: AnyItem, turns: Mapping[str, int]) -> int | None:
    return None if isinstance(item, UnknownItem) else turns.get(item.id or "")


def _is_same_turn(call: WebSearchCall, following: AnyItem | None, turns: Mapping[str, int]) -> bool:
    """Where the turns are not known, a call directly after a call is of the same turn."""
    if following is None or not is_model_output(following):
        return False
    turn, following_turn = _turn_of(call, turns), _turn_of(following, turns)
    if turn is None or following_turn is None:
        return _is_call(following)
    return turn == following_turn


def _answer(author: str, text_ids: Iterable[int]) -> TokenIds[int]:
    return write_message(author, text_ids, recipient="assistant", channel="commentary")


def _call(kind: CallKind, name: str, text_ids: Iterable[int]) -> TokenIds[int]:
    return write_message(
        "assistant",
        text_ids,
        recipient=recipient_of(kind, name),
        channel="commentary",
        is_json=kind != "custom_tool_call",
        end=CALL,
    )


def _render_item(
    item: AnyItem, channel: str, name_of: Callable[[str], str], encode: Encode
) -> TokenIds[int]:
    match item:
        case Message(role="assistant"):
            return write_message("assistant", encode(text_of(item.content)), channel=channel)
        case Message():
            if item.role not in _INPUT_ROLES:
                raise ProtocolError(f"a message cannot have the role {item.role!r}")
            return write_message(item.role, encode(text_of(item.content)))
        case Reasoning():
            text = "".join(part.text for part in item.content or item.summary or ())
            if not text:
                return TokenIds("I")
            return write_message("assistant", encode(text), channel="analysis")
        case FunctionCall():
            return _call("function_call", called_name(item), encode(item.arguments))
        case CustomToolCall():
            return _call("custom_tool_call", item.name, encode(item.input))
        case WebSearchCall():
            return _call("hosted_call", WEB_SEARCH, encode(_search_arguments(item)))
        case FunctionCallOutput():
            author = recipient_of("function_call", name_of(item.call_id))
            return _answer(author, encode(text_of(item.output)))
        case CustomToolCallOutput():
            author = recipient_of("custom_tool_call", name_of(item.call_id))
            return _answer(author, encode(text_of(item.output)))
        case Compaction():
            return write_message("developer", encode(item.encrypted_content))
        case UnknownItem():
            return write_message("developer", encode(canonical_text(item.raw)))
        case ItemReference():
            raise ProtocolError(f"the item reference {item.id!r} was not resolved")
        case _:
            assert_never(item)


def _search_arguments(call: WebSearchCall) -> str:
    """What the model wrote: the action without the `type` that the wire adds."""
    return canonical_json({key: value for key, value in call.action.items() if key != "type"})


class SaidReasoning(Struct, frozen=True):
    """The model thinks; empty reasoning leaves no trace."""

    text: str


class SaidText(Struct, frozen=True):
    """The model writes a message."""

    text: str


class SaidTokens(Struct, frozen=True):
    """The model writes a message of exactly these ids, whatever they are."""

    ids: tuple[int, ...]


class SaidCall(Struct, frozen=True):
    """The model calls a tool.

    Attributes:
        name: as `called_name` gives it.
        arguments: JSON text, also a malformed one; a freeform tool's input.
        kind: what the name stands for. A hosted call's arguments are sampled as canonical JSON.
    """

    name: str
    arguments: str
    kind: CallKind = "function_call"


Said = SaidReasoning | SaidText | SaidTokens | SaidCall


def render_turn(said: Sequence[Said]) -> list[list[int]]:
    """What a model samples in one turn after `TURN_START`: the ids of each part, in order.

    The turn's last id is `<|call|>` after a call, else `<|return|>`.
    """
    said = [part for part in said if part != SaidReasoning("")]
    last_call = max((i for i, part in enumerate(said) if isinstance(part, SaidCall)), default=-1)
    turn = [
        _render_said(part, "commentary" if index < last_call else "final").tolist()
        for index, part in enumerate(said)
    ]
    if turn:
        del turn[0][: len(TURN_START)]
        if turn[-1][-1] == END:
            turn[-1][-1] = RETURN
    return turn


def _render_said(part: Said, channel: str) -> TokenIds[int]:
    match part:
        case SaidReasoning():
            return write_message("assistant", _encode(part.text), channel="analysis")
        case SaidText():
            return write_message("assistant", _encode(part.text), channel=channel)
        case SaidTokens():
            return write_message("assistant", part.ids, channel=channel)
        case SaidCall(kind="hosted_call"):
            return _call(part.kind, part.name, _encode(_canonical_arguments(part.arguments)))
        case SaidCall():
            return _call(part.kind, part.name, _encode(part.arguments))
        case _:
            assert_never(part)


def _canonical_arguments(arguments: str) -> str:
    try:
        return canonical_text(arguments)
    except ProtocolError:
        return arguments  # malformed on purpose


def as_history(sampled_ids: Sequence[int]) -> TokenIds[int]:
    """What a sampled turn leaves in history, after its `TURN_START`.

    The last `<|return|>` becomes `<|end|>`. Of a turn that was cut, an open message gets its
    `<|end|>`; an open call or header is dropped. Empty where nothing remains: such a turn leaves
    no `TURN_START` either.
    """
    ids = TokenIds("I", sampled_ids)
    if ids and ids[-1] not in MESSAGE_ENDS:
        ids = _without_open_end(ids)
    if ids and ids[-1] == RETURN:
        ids[-1] = END
    return ids


def _without_open_end(ids: TokenIds[int]) -> TokenIds[int]:
    begin = _last_message_begin(ids)
    opened = ids[begin:]
    if MESSAGE in opened:
        header = opened[: opened.index(MESSAGE)]
        header_ids = [token_id for token_id in header if token_id != START]
        if read_header(header_ids).kind in ("message", "reasoning"):
            return ids + TokenIds("I", (END,))
    return ids[:begin]


def _last_message_begin(ids: TokenIds[int]) -> int:
    """Where the message begins that the ids leave open."""
    for index in range(len(ids) - 1, -1, -1):
        if ids[index] == START:
            return index
        if ids[index] in MESSAGE_ENDS:
            return index + 1
    return 0
