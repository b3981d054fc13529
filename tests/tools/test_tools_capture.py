"""Output in bounded memory."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from agentloop.tools.capture import Capture, HeadTail


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_chunks_do_not_matter(chunks: list[bytes]) -> None:
    whole, parts = HeadTail(64), HeadTail(64)
    whole.write(b"".join(chunks))
    for chunk in chunks:
        parts.write(chunk)
    assert parts.text() == whole.text()


def test_what_fits_is_kept_whole() -> None:
    kept = HeadTail(10)
    kept.write(b"01234")
    kept.write(b"56789")
    assert kept.text() == "0123456789"


def test_one_byte_more_is_cut_and_counted() -> None:
    kept = HeadTail(10)
    kept.write(b"0123456789A")
    assert kept.text() == "01234\n[... 1 bytes cut ...]\n6789A"


def test_a_cut_leaves_no_broken_characters() -> None:
    kept = HeadTail(10)
    kept.write("aéé".encode() + b"x" * 50 + "éé日".encode())
    assert kept.text() == "aéé\n[... 52 bytes cut ...]\né日"
    split = HeadTail(8)
    split.write("日本語日本語".encode())
    assert split.text() == "日\n[... 10 bytes cut ...]\n語"


def test_invalid_bytes_are_replaced() -> None:
    kept = HeadTail(10)
    kept.write(b"a\xff\xfeb")
    assert kept.text() == "a\ufffd\ufffdb"


async def test_a_pipe_is_read_to_what_it_holds_and_closed() -> None:
    before = set(os.listdir("/dev/fd"))
    with Capture(1_000) as capture:
        os.write(capture.write_fd, b"written, never read by the loop")
    assert capture.text() == "written, never read by the loop"
    assert set(os.listdir("/dev/fd")) == before
