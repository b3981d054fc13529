"""The frame of a harmony message, written and read.

    <|start|>AUTHOR[ to=RECIPIENT][<|channel|>CHANNEL[ <|constrain|>json]]<|message|>TEXT END

END is `<|call|>` after an assistant's message with a recipient, else `<|end|>`; a model samples
`<|return|>` instead of the last `<|end|>` of its turn. Written in role-recipient form, as above;
read in that form and in the one with the recipient inside the channel's part.

Recipients name what is called: `functions.NAME`, for a tool of a namespace
`functions.NAMESPACE.NAME`; `custom.NAME` for a freeform tool; a bare name, such as `web_search`,
for a tool of the server's own.

Format: https://github.com/openai/harmony/blob/main/docs/format.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

from agentloop.engine.api import TokenIds
from agentloop.tokens.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    RETURN,
    START,
    vocabulary,
)

CallKind = Literal["function_call", "custom_tool_call", "hosted_call"]
Kind = Literal["reasoning", "message"] | CallKind
Phase = Literal["commentary", "final_answer", ""]

TURN_START: Final = (START, 173781)  # <|start|>assistant
MESSAGE_ENDS: Final = frozenset((END, RETURN, CALL))

_FUNCTIONS: Final = "functions."
_CUSTOM: Final = "custom."
_NOT_CALLED: Final = frozenset(("all", "assistant", "user"))


class Header(Struct, frozen=True, gc=False):
    """What a message's header says.

    Attributes:
        kind: the kind of item that follows.
        name: the called tool's name; empty unless `kind` is a call.
        phase: a message's phase; empty for other kinds.
        spare: words that belong to no part of a header.
    """

    kind: Kind
    name: str = ""
    phase: Phase = ""
    spare: str = ""


def recipient_of(kind: CallKind, name: str) -> str:
    """The recipient that calls this tool."""
    match kind:
        case "function_call":
            return _FUNCTIONS + name
        case "custom_tool_call":
            return _CUSTOM + name
        case "hosted_call":
            return name


def write_message(
    author: str,
    text_ids: Iterable[int],
    *,
    recipient: str = "",
    channel: str = "",
    is_json: bool = False,
    end: int = END,
) -> TokenIds[int]:
    """The ids of one message."""
    ids = TokenIds("I", _write_header(author, recipient, channel, is_json))
    ids.extend(text_ids)
    ids.append(end)
    return ids


@lru_cache(maxsize=4096)
def _write_header(author: str, recipient: str, channel: str, is_json: bool) -> tuple[int, ...]:
    encode = vocabulary().encode
    ids = [START, *encode(author)]
    if recipient:
        ids += encode(f" to={recipient}")
    if channel:
        ids += [CHANNEL, *encode(channel)]
    if is_json:
        ids += [*encode(" "), CONSTRAIN, *encode("json")]
    return (*ids, MESSAGE)


def read_header(ids: Sequence[int]) -> Header:
    """Read the ids between `<|start|>` (or a turn's start) and `<|message|>`; never raises.

    The first word `to=…` anywhere is the recipient and makes the item a call. Otherwise the
    channel decides: `analysis` is reasoning, `commentary` a message of that phase; any other
    channel, or none, a final message.
    """
    return _read_header(tuple(ids))


@lru_cache(maxsize=4_096)  # a few headers begin nearly every message
def _read_header(ids: tuple[int, ...]) -> Header:
    author, channel, form = _split_header(ids)
    words = [*author, *channel[1:], *form[1:]]
    recipients = [word[3:] for word in (*author, *channel) if word.startswith("to=")]
    if recipients and recipients[0] not in _NOT_CALLED:
        return _called(recipients[0])
    if author and author[0] == "assistant":
        del words[0]
    spare = " ".join(word for word in words if not word.startswith("to="))
    match channel[:1]:
        case ["analysis"]:
            return Header("reasoning", spare=spare)
        case ["commentary"]:
            return Header("message", phase="commentary", spare=spare)
        case _:
            return Header("message", phase="final_answer", spare=spare)


def _split_header(ids: Sequence[int]) -> tuple[list[str], list[str], list[str]]:
    """The words of the author's, the channel's and the format's part."""
    author: list[int] = []
    channel: list[int] = []
    form: list[int] = []
    part = author
    for token_id in ids:
        if token_id == CHANNEL:
            part = channel
        elif token_id == CONSTRAIN:
            part = form
        else:
            part.append(token_id)
    decode = vocabulary().decode
    return decode(author).split(), decode(channel).split(), decode(form).split()


def _called(recipient: str) -> Header:
    if recipient.startswith(_FUNCTIONS):
        return Header("function_call", recipient.removeprefix(_FUNCTIONS))
    if recipient.startswith(_CUSTOM):
        return Header("custom_tool_call", recipient.removeprefix(_CUSTOM))
    return Header("hosted_call", recipient)
