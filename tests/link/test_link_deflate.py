"""permessage-deflate (RFC 7692) on a server's links: which offers it takes, and what goes out."""

from __future__ import annotations

import argparse
import asyncio
import tracemalloc
import zlib
from itertools import pairwise
from typing import Any

import aiohttp
import msgspec
import pytest
import uvloop
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from agentloop.cli.serve import _server_options, add_parser
from agentloop.clock import Clock, WallClock, run_virtual
from agentloop.gate import Gate
from agentloop.link.api import MIB
from agentloop.link.deflate import DEFLATED_BYTES_MAX, DEFLATED_BYTES_MIN, Deflater, is_sound
from agentloop.link.websocket import accept
from agentloop.server.app import serve
from agentloop.server.options import ServerOptions
from tests.link.conformance import expect_closed
from tests.link.deflate_kit import (
    DEFLATE,
    DEFLATED,
    TAIL,
    TEXT,
    UNICODE,
    Inflater,
    bare,
    client,
    deflated,
    noise,
    text,
)
from tests.link.test_link_websocket import CountingTransport, serving

# Negotiation.


@pytest.mark.parametrize(
    ("offer", "compresses"), [(DEFLATE, False), (f"{DEFLATE}; client_max_window_bits", False),
                              (None, True), ("x-webkit-deflate-frame", True)],
)  # fmt: skip
async def test_refused_or_not_offered_the_link_is_plain(offer: str | None, compresses: bool):
    async with bare(offer, compresses=compresses) as (link, peer):
        assert peer.extensions is None
        link.send([text(200), text(200)])
        assert [await peer.frame() for _ in range(2)] == [(TEXT, text(200))] * 2
        peer.send(TEXT, b"up")
        assert await link.recv() == b"up"
        peer.send(DEFLATED, deflated(b"unasked"))
        assert (await expect_closed(link)).close_code == 1002


async def test_a_link_does_not_compress_unless_told_to():
    async def handle(request: web.Request) -> web.StreamResponse:
        link = await accept(request, clock=WallClock(), gate=Gate())
        await link.close()
        return link.response

    async with (
        serving(handle) as url,
        aiohttp.ClientSession() as session,
        session.ws_connect(url, compress=15) as peer,
    ):
        assert peer.compress == 0
    assert not ServerOptions().compresses


ACCEPTED = {
    DEFLATE: DEFLATE,
    f"{DEFLATE}; client_max_window_bits": DEFLATE,
    f"{DEFLATE};client_max_window_bits=8;client_no_context_takeover": DEFLATE,
    f"{DEFLATE}; server_no_context_takeover": f"{DEFLATE}; server_no_context_takeover",
    f"{DEFLATE}; server_max_window_bits=10": f"{DEFLATE}; server_max_window_bits=10",
    f"{DEFLATE}; server_max_window_bits=8, {DEFLATE}": DEFLATE,
    f"x-other; a=1, {DEFLATE}": DEFLATE,
    f"{DEFLATE}; server_max_window_bits=9; server_no_context_takeover; client_max_window_bits=15":
        f"{DEFLATE}; server_max_window_bits=9; server_no_context_takeover",
}  # fmt: skip


@pytest.mark.parametrize(("offer", "answer"), ACCEPTED.items())
async def test_a_sound_offer_is_accepted(offer: str, answer: str):
    async with bare(offer) as (link, peer):
        assert peer.extensions == answer
        link.send([text(200)])
        first_byte, payload = await peer.frame()
        assert (first_byte, Inflater().inflate(payload)) == (DEFLATED, text(200))
        for word in (b"one", b"two"):
            peer.send(DEFLATED, deflated(word))
            assert await link.recv() == word
        peer.send(TEXT, b"not everything has to be compressed")
        assert await link.recv() == b"not everything has to be compressed"


UNSOUND = (
    f"{DEFLATE}; server_max_window_bits",
    f"{DEFLATE}; server_max_window_bits=7",
    f"{DEFLATE}; server_max_window_bits=16",
    f"{DEFLATE}; server_max_window_bits=010",
    f"{DEFLATE}; client_max_window_bits=99",
    f"{DEFLATE}; client_max_window_bits=",
    f"{DEFLATE}; server_no_context_takeover=1",
    f"{DEFLATE}; client_no_context_takeover; client_no_context_takeover",
    f"{DEFLATE}; server_max_window_bits=9; server_max_window_bits=10",
    f"{DEFLATE}; mystery",
    f"{DEFLATE};",
    f"x-{DEFLATE}",
    f"x-other; a={DEFLATE}",
    f'x-other; a="1, {DEFLATE}"',
)


@pytest.mark.parametrize("offer", [*UNSOUND, f"{DEFLATE}; server_max_window_bits=8"])
async def test_an_invalid_offer_is_declined_and_the_link_is_plain(offer: str):
    async with bare(offer) as (link, peer):
        assert peer.extensions is None
        link.send([text(200)])
        assert await peer.frame() == (TEXT, text(200))


def test_offers_are_sound_or_not():
    assert all(map(is_sound, ["", "x-other", *ACCEPTED]))
    assert not any(map(is_sound, UNSOUND))
    assert not is_sound(f"{DEFLATE}, {UNSOUND[0]}")


# What goes out.

SIZES = (0, 1, 63, 64, 125, 126, 127, 65_535, 65_536, MIB, MIB + 1)


async def test_frames_of_every_size_leave_as_they_should():
    async with bare() as (link, peer):
        frames = [text(size, seed) for seed, size in enumerate(SIZES)]
        inflater = Inflater()
        for frame in frames:
            link.send([frame])
            first_byte, payload = await peer.frame()
            if DEFLATED_BYTES_MIN <= len(frame) <= DEFLATED_BYTES_MAX:
                assert (first_byte, inflater.inflate(payload)) == (DEFLATED, frame)
                assert len(payload) < len(frame)
            else:
                assert (first_byte, payload) == (TEXT, frame)
        noisy = noise(65_536)
        link.send([noisy])
        assert inflater.inflate((await peer.frame())[1]) == noisy


def test_hello_is_deflated_as_in_the_rfc():
    assert Deflater(DEFLATE).deflate(b"Hello").hex() == "f248cdc9c90700"


async def check_sizes_both_ways(window_bits: int) -> None:
    async with client(compress=window_bits) as (link, peer):
        expected = (
            DEFLATE if window_bits == 15 else f"{DEFLATE}; server_max_window_bits={window_bits}"
        )
        assert peer._response.headers["Sec-WebSocket-Extensions"] == expected
        frames = [text(size, seed) for seed, size in enumerate(SIZES)] + [UNICODE, noise(70_000)]
        link.send(frames[:5])
        for frame in frames[5:]:
            link.send([frame])
        assert [(await peer.receive()).data.encode() for _ in frames] == frames
        for frame in frames:
            await peer.send_str(frame.decode())
            assert await link.recv() == frame


@pytest.mark.parametrize("window_bits", [9, 12, 15])
async def test_a_foreign_client_reads_and_is_read(window_bits: int):
    await check_sizes_both_ways(window_bits)


def test_a_foreign_client_reads_and_is_read_on_uvloop():
    uvloop.run(check_sizes_both_ways(15))


@pytest.mark.parametrize("window_bits", range(9, 16))
async def test_the_window_that_was_agreed_is_kept(window_bits: int):
    """A message repeats the one before at a distance that a larger window would reach back to; a
    client with no more memory than agreed could not."""
    async with bare(f"{DEFLATE}; server_max_window_bits={window_bits}") as (link, peer):
        inflater = Inflater(window_bits)
        for size in (300, 700, 1_500, 3_000, 40_000):
            for frame in (noise(size, size),) * 2:
                link.send([frame])
                assert inflater.inflate((await peer.frame())[1]) == frame


def test_a_larger_window_than_agreed_would_be_noticed():
    deflater, inflater = Deflater(DEFLATE), Inflater(9)
    inflater.inflate(deflater.deflate(noise(700)))
    with pytest.raises(zlib.error, match="too far back"):
        inflater.inflate(deflater.deflate(noise(700)))


async def test_context_is_kept_unless_agreed_otherwise():
    for offer, is_kept in [(DEFLATE, True), (f"{DEFLATE}; server_no_context_takeover", False)]:
        async with bare(offer) as (link, peer):
            link.send([text(500)] * 3)
            payloads = [(await peer.frame())[1] for _ in range(3)]
            assert (len(payloads[1]) < len(payloads[0]) // 4) == is_kept
            if not is_kept:
                assert [Inflater().inflate(payload) for payload in payloads] == [text(500)] * 3


PARAMETERS = st.builds(
    lambda *parts: DEFLATE + "".join(parts),
    st.sampled_from(["", *(f"; server_max_window_bits={bits}" for bits in range(9, 16))]),
    st.sampled_from(["", "; server_no_context_takeover"]),
)


@given(PARAMETERS, st.lists(st.binary(min_size=1, max_size=3_000), max_size=20))
def test_whatever_is_agreed_every_message_can_be_read(agreed: str, messages: list[bytes]):
    window_bits = int(agreed.partition("bits=")[2].partition(";")[0] or 15)
    deflater, inflater = Deflater(agreed), Inflater(window_bits)
    for message in messages:
        payload = deflater.deflate(message)
        assert inflater.inflate(payload) == message
        if "no_context" in agreed:
            assert Inflater().inflate(payload) == message


async def test_what_is_due_leaves_in_one_write_and_counts_as_it_was():
    async with client() as (link, peer):
        transport = CountingTransport(link._transport)
        link._transport = transport  # type: ignore[assignment]
        taps: list[tuple[str, bytes]] = []
        link.tap = lambda direction, frame: taps.append((direction, frame))
        frames = [text(200, seed) for seed in range(50)]
        for frame in frames:
            link.send([frame])
        link.send([b"held"], 1)
        assert link.queued_bytes > 50 * 200
        assert [(await peer.receive()).data.encode() for _ in frames] == frames
        assert (transport.writes, link.frames_out, link.bytes_out) == (1, 50, 50 * 200)
        await peer.send_str("x" * 10_000)
        await link.recv()
        assert (link.frames_in, link.bytes_in) == (1, 10_000)
        assert taps == [*(("out", frame) for frame in frames), ("in", b"x" * 10_000)]


async def test_much_at_once_does_not_hold_up_the_event_loop():
    loop = asyncio.get_running_loop()
    async with client() as (link, peer):
        turn, turns, counts = 0, [], [0]

        class Noting(CountingTransport):
            def write(self, data: bytes) -> None:
                turns.append(turn)
                counts.append(link.bytes_out)
                loop.call_soon(next_turn)
                super().write(data)

        def next_turn() -> None:
            nonlocal turn
            turn += 1

        link._transport = Noting(link._transport)  # type: ignore[assignment]
        frames = [text(1_000, seed) for seed in range(50)] * 10
        for frame in frames:
            link.send([frame])
        assert [(await peer.receive()).data.encode() for _ in frames] == frames
        assert turns == list(range(len(turns)))
        assert max(after - before for before, after in pairwise(counts)) <= 65_536
        assert len(turns) < 12


def test_a_link_costs_no_more_memory_than_stated():
    big = text(200_000)
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        deflater = Deflater(DEFLATE)
        payload = deflater.deflate(big)
        inflater = zlib.decompressobj(-15)  # as aiohttp makes it
        inflater.decompress(payload + TAIL)
        del payload
        after_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after_bytes - before_bytes <= 62 * 1024


# The server.

CREATE = {
    "type": "response.create",
    "model": "sim",
    "input": "go",
    "simulation": {"turns": [[{"reasoning": "hm"}, {"text": text(6_000).decode()}]]},
}


def session(compresses: bool, offered: int) -> tuple[int, list[Any]]:
    """The window that was agreed, and all events of a session."""

    async def main(clock: Clock) -> tuple[int, list[Any]]:
        options = ServerOptions(port=0, is_reproducible=True, compresses=compresses)
        async with (
            serve(options, clock=clock) as server,
            aiohttp.ClientSession() as http,
            http.ws_connect(f"{server.url}/v1/responses?protocol=append", compress=offered) as peer,
        ):
            await peer.send_bytes(b"refused, and the link stays")
            await peer.send_str(msgspec.json.encode(CREATE).decode())
            events: list[Any] = []
            while not events or events[-1]["type"] != "response.done":
                events.append(msgspec.json.decode((await peer.receive()).data))
            return peer.compress, events

    return run_virtual(main)


def test_a_server_compresses_a_session_and_says_the_same():
    plain_bits, plain = session(compresses=False, offered=15)
    unasked_bits, unasked = session(compresses=True, offered=0)
    bits, compressed = session(compresses=True, offered=15)
    assert (plain_bits, unasked_bits, bits) == (0, 0, 15)
    assert len(plain) > 1_000
    assert plain == unasked == compressed


@pytest.mark.parametrize(("arguments", "compresses"), [([], False), (["--compress"], True)])
def test_serve_is_told_to_compress(arguments: list[str], compresses: bool):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    assert _server_options(parser.parse_args(["serve", *arguments])).compresses == compresses
