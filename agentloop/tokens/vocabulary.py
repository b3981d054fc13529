"""The o200k_harmony vocabulary: text to token ids and back.

Ordinary text never becomes a special token, whatever it spells: `<|end|>` in a user's message is
seven plain tokens. Special ids come only from the renderer and from a model. The library behind
this is replaced by writing another `Vocabulary`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, Protocol

from splintr import Tokenizer

RETURN: Final = 200002
CONSTRAIN: Final = 200003
CHANNEL: Final = 200005
START: Final = 200006
END: Final = 200007
MESSAGE: Final = 200008
CALL: Final = 200012

FIRST_SPECIAL: Final = 199998  # every id below is ordinary text

_SPELLINGS: Final = {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    RETURN: "<|return|>",
    CONSTRAIN: "<|constrain|>",
    CHANNEL: "<|channel|>",
    START: "<|start|>",
    END: "<|end|>",
    MESSAGE: "<|message|>",
    CALL: "<|call|>",
}


class Decoder(Protocol):
    """Ids to text, piece by piece. Holds back the bytes of an unfinished character, so the pieces
    joined are the text of all ids, however they were split. Special ids add nothing."""

    def add_token(self, token_id: int, /) -> str | None:
        """The text that is certain now; None or empty where there is none."""

    def add_tokens(self, token_ids: Sequence[int], /) -> str | None:
        """The same for several ids at once."""

    def flush(self) -> str:
        """What was held back, an unfinished character as U+FFFD. The decoder starts afresh."""


class Vocabulary(Protocol):
    """What the rest of agentloop may ask of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: bytes that are not UTF-8 become U+FFFD, special ids add nothing."""

    def decoder(self) -> Decoder:
        """A new streaming decoder."""


class HarmonyVocabulary:
    """o200k_harmony by splintr, which carries the vocabulary inside."""

    def __init__(self) -> None:
        tokenizer = Tokenizer.from_pretrained("o200k_harmony")
        self._encode = tokenizer.encode_ordinary
        self._decode = tokenizer.decode_lossy
        self._decoder = tokenizer.streaming_decoder

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text; a lone surrogate counts as U+FFFD."""
        try:
            return self._encode(text)
        except UnicodeEncodeError:
            return self._encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: bytes that are not UTF-8 become U+FFFD, special ids add nothing."""
        return self._decode(ids)

    def decoder(self) -> Decoder:
        """A new streaming decoder."""
        return self._decoder()


@cache
def vocabulary() -> Vocabulary:
    """The one vocabulary of this process, loaded at the first use (some 50 ms)."""
    return HarmonyVocabulary()


def warm_up() -> None:
    """Load the vocabulary and take the slow first calls now, not within the first turn.

    The first word that is no token by itself makes the library build its table of merges (0.1 s).
    """
    vocabulary().decode(vocabulary().encode("The first merge is slow: xqzvkjwpfq"))


def spelling(token_id: int) -> str:
    """A special id as literal text; U+FFFD for an id without a meaning here."""
    return _SPELLINGS.get(token_id, "\N{REPLACEMENT CHARACTER}")
