"""Sampled token ids of one turn to what a client may hear of it, step by step.

A turn begins inside a header, since `<|start|>assistant` ends its prompt, and alternates between
two states:

    header ──<|message|>──► text        opens an item
    text ──<|end|> <|call|> <|return|> or <|start|>──► header        closes it

Whatever a model samples is parsed without an error. What is malformed:

- Inside text, any other special id stands as literal text (`<|channel|>`), an id without a meaning
  as U+FFFD.
- A header that ends without `<|message|>` becomes a message of its spare words (joined by single
  spaces); without such words, or with a recipient, nothing.
- Spare words of a header that opens an item, and special ids without a place there, are ignored.
- Unknown channels and none are final messages (`agentloop.tokens.frame.read_header`).
- After an end, `<|start|>` may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from agentloop.tokens.frame import MESSAGE_ENDS, Header, Kind, Phase, read_header
from agentloop.tokens.vocabulary import (
    CHANNEL,
    CONSTRAIN,
    FIRST_SPECIAL,
    MESSAGE,
    START,
    spelling,
    vocabulary,
)

_HEADER_MARKS: Final = frozenset((CHANNEL, CONSTRAIN))


class Opened(Struct, frozen=True, gc=False):
    """An item begins. `name` is the called tool's, `phase` a message's; else they are empty."""

    kind: Kind
    name: str = ""
    phase: Phase = ""


class Delta(Struct, frozen=True, gc=False):
    """More text of the open item; never empty."""

    text: str


class Closed(Struct, frozen=True, gc=False):
    """The open item is whole. `text` is all its deltas joined."""

    text: str


class Cut(Struct, frozen=True, gc=False):
    """The turn finished within the open item. `text` is all its deltas joined."""

    text: str


Parsed = Opened | Delta | Closed | Cut


class Parser:
    """The incremental parser of one turn; a new turn takes a new one."""

    __slots__ = ("_decoder", "_header", "_is_in_text", "_texts")

    def __init__(self) -> None:
        self._decoder = vocabulary().decoder()
        self._is_in_text = False
        self._header: list[int] = []
        self._texts: list[str] = []

    def text_of(self, ids: Sequence[int]) -> str | None:
        """The text that these ids add to the open item, empty for none; None, and nothing taken,
        where a special id among them may begin or end an item.

        Nearly every step is ordinary text, some 150,000 times a second; `split` takes the others.
        """
        if not ids or max(ids) >= FIRST_SPECIAL:
            return None
        if not self._is_in_text:
            self._header += ids
            return ""
        text = self._decoder.add_tokens(ids) or ""
        if text:
            self._texts.append(text)
        return text

    def feed(self, ids: Sequence[int]) -> list[Parsed]:
        """Take the next ids and say what they make. How ids are split changes only the deltas."""
        text = self.text_of(ids)
        if text is None:
            return self.split(ids)
        return [Delta(text)] if text else []

    def finish(self) -> list[Parsed]:
        """The engine has finished. An open item is cut; an unfinished header says nothing."""
        if not self._is_in_text:
            self._header.clear()
            return []
        parsed: list[Parsed] = []
        parsed.append(Cut(self._end_text(parsed)))
        return parsed

    def split(self, ids: Sequence[int]) -> list[Parsed]:
        """Take the next ids, special ones among them."""
        parsed: list[Parsed] = []
        begin = 0
        for index, token_id in enumerate(ids):
            if token_id >= FIRST_SPECIAL:
                self._take_ordinary(ids[begin:index], parsed)
                self._take_special(token_id, parsed)
                begin = index + 1
        self._take_ordinary(ids[begin:], parsed)
        return parsed

    def _take_ordinary(self, ids: Sequence[int], parsed: list[Parsed]) -> None:
        if self._is_in_text:
            self._say(self._decoder.add_tokens(ids), parsed)
        else:
            self._header += ids

    def _take_special(self, token_id: int, parsed: list[Parsed]) -> None:
        if token_id == START or token_id in MESSAGE_ENDS:
            self._end_message(parsed)
        elif self._is_in_text:
            self._say(self._decoder.flush() + spelling(token_id), parsed)
        elif token_id == MESSAGE:
            self._open(read_header(self._header), parsed)
        elif token_id in _HEADER_MARKS:
            self._header.append(token_id)

    def _end_message(self, parsed: list[Parsed]) -> None:
        if not self._is_in_text:
            header = read_header(self._header)
            self._header.clear()
            if not header.spare:
                return
            self._open(header, parsed)
            self._say(header.spare, parsed)
        parsed.append(Closed(self._end_text(parsed)))

    def _open(self, header: Header, parsed: list[Parsed]) -> None:
        self._header.clear()
        self._is_in_text = True
        parsed.append(Opened(header.kind, header.name, header.phase))

    def _say(self, text: str | None, parsed: list[Parsed]) -> None:
        if text:
            self._texts.append(text)
            parsed.append(Delta(text))

    def _end_text(self, parsed: list[Parsed]) -> str:
        self._say(self._decoder.flush(), parsed)
        text = "".join(self._texts)
        self._texts.clear()
        self._is_in_text = False
        return text


def reasoning_count(ids: Iterable[int]) -> int:
    """How many of a turn's ids are the text of its reasoning, as its usage reports them."""
    count = 0
    header: list[int] | None = []  # None within text
    is_reasoning = False
    for token_id in ids:
        if token_id == START or token_id in MESSAGE_ENDS:
            header, is_reasoning = [], False
        elif header is None:
            count += is_reasoning
        elif token_id == MESSAGE:
            is_reasoning = read_header(header).kind == "reasoning"
            header = None
        else:
            header.append(token_id)
    return count
