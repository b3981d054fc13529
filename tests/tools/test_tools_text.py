"""What a model and the wire may read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.tools.text import bounded, clean

CASES = {
    "plain": ("a\tb\r\nc\x0c", "a\tb\r\nc\x0c"),
    "colours": ("\x1b[1;31mred\x1b[0m", "red"),
    "cursor": ("\x1b[2J\x1b[?25lup\x1b[10A", "up"),
    "title ended by bell": ("\x1b]0;title\x07text", "text"),
    "link ended by string terminator": ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    "device control": ("\x1bPq#0\x1b\\after", "after"),
    "title without an end": ("\x1b]0;title\nnext", "\nnext"),
    "charset": ("\x1b(Btext\x1b=", "text"),
    "8-bit introducer": ("\x9b31mred", "red"),
    "cut sequence": ("text\x1b[31", "text"),
    "lone escape": ("a\x1b", "a"),
    "nul, bell, backspace, delete": ("a\0b\x07c\x08d\x7f", "abcd"),
    "lone surrogates": ("a\ud83d b\udc80", "a\ufffd b\ufffd"),
    "text beyond ASCII": ("é 日本 😀", "é 日本 😀"),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES.keys())
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected


@given(st.text(st.characters(codec=None), max_size=200))
def test_clean_text_is_always_fit_for_the_wire(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert not {"\0", "\x1b", "\x9b"} & set(cleaned)


def test_a_short_text_is_not_touched() -> None:
    assert bounded("x" * 100, 100) == "x" * 100


def test_a_long_text_keeps_head_and_tail_and_says_how_much_is_missing() -> None:
    text = "".join(f"{number:05}" for number in range(1_000))
    short = bounded(text, 248)
    head, marker, tail = short.split("\n")
    assert (head, marker, tail) == (text[:100], "[... 4800 characters cut ...]", text[-100:])


@given(st.integers(0, 400), st.integers(0, 1_000))
def test_the_bound_holds(chars_max: int, length: int) -> None:
    assert len(bounded("x" * length, chars_max)) <= chars_max
