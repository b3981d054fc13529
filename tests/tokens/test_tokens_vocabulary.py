"""The vocabulary: the official one, without a way to forge special ids, and its streaming."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.tokens import vocabulary as module
from agentloop.tokens.frame import TURN_START
from agentloop.tokens.vocabulary import FIRST_SPECIAL, spelling, vocabulary, warm_up
from tests.tokens import oracle

CONSTANTS = ("RETURN", "CONSTRAIN", "CHANNEL", "START", "END", "MESSAGE", "CALL")


@pytest.mark.parametrize("name", CONSTANTS)
def test_special_ids_are_the_oracles(name: str) -> None:
    token_id = getattr(module, name)
    marker = f"<|{name.lower()}|>"
    assert oracle.encoding().encode(marker, allowed_special="all") == [token_id]
    assert spelling(token_id) == marker
    assert token_id >= FIRST_SPECIAL


def test_a_turn_starts_with_an_assistants_header() -> None:
    start = oracle.encoding().encode("<|start|>assistant", allowed_special="all")
    assert list(TURN_START) == start


@pytest.mark.parametrize("marker", [*oracle.SPELLINGS, "<|constrain|>", "<|endoftext|>"])
def test_text_cannot_forge_special_ids(marker: str) -> None:
    ids = vocabulary().encode(f"a {marker} b")
    assert max(ids) < FIRST_SPECIAL
    assert vocabulary().decode(ids) == f"a {marker} b"


def test_ordinary_ids_are_those_of_the_official_file() -> None:
    assert sorted(oracle.token_bytes()) == list(range(FIRST_SPECIAL))


@given(oracle.texts)
def test_text_survives(text: str) -> None:
    assert vocabulary().decode(vocabulary().encode(text)) == text


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    ids = vocabulary().encode("a\ud800b \ud83d\ude00")
    assert vocabulary().decode(ids) == "a\ufffdb 😀"


@given(st.lists(st.integers(0, 2000) | st.integers(0, FIRST_SPECIAL - 1), max_size=30), st.data())
def test_pieces_joined_are_the_whole(ids: list[int], data: st.DataObject) -> None:
    decoder = vocabulary().decoder()
    cut = data.draw(st.integers(0, len(ids)))
    pieces = [decoder.add_token(token_id) for token_id in ids[:cut]]
    pieces += [decoder.add_tokens(ids[cut:]), decoder.flush()]
    whole = b"".join(oracle.token_bytes()[i] for i in ids).decode("utf-8", "replace")
    assert "".join(piece or "" for piece in pieces) == whole == vocabulary().decode(ids)


def test_a_character_is_held_back_until_it_is_whole() -> None:
    ids = vocabulary().encode("🦖")
    assert len(ids) > 1
    decoder = vocabulary().decoder()
    pieces = [decoder.add_token(token_id) or "" for token_id in ids]
    assert pieces == [*[""] * (len(ids) - 1), "🦖"]


def test_a_cut_within_a_character_shows_and_the_decoder_starts_afresh() -> None:
    ids = vocabulary().encode("🦖")
    decoder = vocabulary().decoder()
    assert not decoder.add_tokens(ids[:-1])
    assert decoder.flush() == "\ufffd"
    assert decoder.add_tokens(ids) == "🦖"


def test_it_is_loaded_once() -> None:
    warm_up()
    assert vocabulary() is vocabulary()
    assert vocabulary.cache_info().misses == 1
