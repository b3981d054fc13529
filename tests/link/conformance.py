"""What every link promises, whatever carries it.

A check takes a maker of pairs and fails where the promise is broken. `check_link` runs them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from agentloop.clock import Clock
from agentloop.errors import LinkClosed
from agentloop.gate import Gate
from agentloop.link.api import DEFAULT_LIMITS, MIB, Link, LinkLimits

SMALL_QUEUE = LinkLimits(queue_bytes=MIB)


class Pair(NamedTuple):
    """Two joined links. What `a` sends waits for `gate`, what `b` sends for nothing."""

    a: Link
    b: Link
    gate: Gate
    clock: Clock


MakePair = Callable[[LinkLimits], AbstractAsyncContextManager[Pair]]
Check = Callable[[MakePair], Awaitable[None]]


async def check_link(make_pair: MakePair) -> None:
    for check in CHECKS:
        await check(make_pair)


async def recv_until_closed(link: Link) -> tuple[list[bytes], LinkClosed]:
    frames = []
    try:
        while True:
            frames.append(await link.recv())
    except LinkClosed as closed:
        return frames, closed


async def expect_closed(link: Link) -> LinkClosed:
    frames, closed = await recv_until_closed(link)
    assert frames == []
    return closed


async def round_trip(pair: Pair) -> None:
    """After this, whatever `a` could write before has been written."""
    pair.b.send([b"there"])
    assert await pair.a.recv() == b"there"


async def check_order_and_sizes(make_pair: MakePair) -> None:
    sizes = [0, 1, 2, 3, 5, 125, 126, 127, 65_535, 65_536, 65_537, 7]
    frames = [bytes([97 + number]) * size for number, size in enumerate(sizes)]
    async with make_pair(DEFAULT_LIMITS) as pair:
        for sender, receiver in [(pair.a, pair.b), (pair.b, pair.a)]:
            sender.send(frames[:4])
            for frame in frames[4:]:
                sender.send([frame])
            assert [await receiver.recv() for _ in frames] == frames


async def check_text_is_untouched(make_pair: MakePair) -> None:
    frames = ["grüße, 世界, 🙂, \u2028".encode(), b'{"not": "utf-8 \xff\xfe"}']
    async with make_pair(DEFAULT_LIMITS) as pair:
        for sender, receiver in [(pair.a, pair.b), (pair.b, pair.a)]:
            sender.send(frames)
            received = [await receiver.recv() for _ in frames]
            assert received == frames
            assert {type(frame) for frame in received} == {bytes}


async def check_flood_of_tiny_frames(make_pair: MakePair) -> None:
    frames = [b"%d" % number for number in range(10_000)]
    async with make_pair(DEFAULT_LIMITS) as pair:
        for sender, receiver in [(pair.a, pair.b), (pair.b, pair.a)]:
            for frame in frames:
                sender.send((frame,))
            assert [await receiver.recv() for _ in frames] == frames


async def check_burst_beyond_what_fits(make_pair: MakePair) -> None:
    async with make_pair(DEFAULT_LIMITS) as pair:
        for sender, receiver in [(pair.a, pair.b), (pair.b, pair.a)]:
            for number in range(300):
                sender.send([b"%d " % number + b"x" * 65_536])
            for number in range(300):
                assert (await receiver.recv()).startswith(b"%d " % number)


async def check_gate_holds_back(make_pair: MakePair) -> None:
    async with make_pair(DEFAULT_LIMITS) as pair:
        pair.a.send([b"first"], 0)
        pair.a.send([b"second", b"third"], 2)
        pair.a.send([b"behind"], 0)
        await round_trip(pair)
        assert pair.a.frames_out == 1
        pair.gate.advance(1)
        await round_trip(pair)
        assert pair.a.frames_out == 1
        pair.gate.advance(2)
        assert [await pair.b.recv() for _ in range(4)] == [b"first", b"second", b"third", b"behind"]
        pair.a.send([b"late"], 2)
        pair.a.send([b"held"], 3)
        assert await pair.b.recv() == b"late"
        pair.gate.advance(7)
        assert await pair.b.recv() == b"held"
        assert pair.a.queued_bytes == 0


async def check_refused_entries_are_dropped(make_pair: MakePair) -> None:
    async with make_pair(DEFAULT_LIMITS) as pair:
        for position in range(1, 5):
            pair.a.send([b"%d" % position], position)
        await round_trip(pair)
        pair.a.drop(lambda position: position in {2, 3})
        pair.gate.advance(4)
        assert [await pair.b.recv() for _ in range(2)] == [b"1", b"4"]
        pair.a.send([b"poisoned"], 5)
        pair.a.send([b"free"], 0)
        await round_trip(pair)
        pair.a.drop(lambda position: position == 5)
        assert await pair.b.recv() == b"free"


async def check_largest_message(make_pair: MakePair) -> None:
    frame = b"x" * DEFAULT_LIMITS.message_bytes
    async with make_pair(DEFAULT_LIMITS) as pair:
        for sender, receiver in [(pair.a, pair.b), (pair.b, pair.a)]:
            sender.send([frame, b"after"])
            assert await receiver.recv() == frame
            assert await receiver.recv() == b"after"


async def check_oversized_message(make_pair: MakePair) -> None:
    limit = DEFAULT_LIMITS.message_bytes
    for swap in (False, True):
        async with make_pair(DEFAULT_LIMITS) as pair:
            sender, receiver = (pair.b, pair.a) if swap else (pair.a, pair.b)
            sender.send([b"before", b"x" * (limit + 1), b"after"])
            frames, here = await recv_until_closed(receiver)
            assert frames == [b"before"]
            assert receiver.is_closed
            async with asyncio.TaskGroup() as group:
                group.create_task(receiver.close())
                there = await expect_closed(sender)
            await sender.close()
            for closed in (here, there):
                assert closed.close_code == 1009
                assert str(limit) in closed.message


async def check_close_is_seen(make_pair: MakePair) -> None:
    for swap in (False, True):
        async with make_pair(DEFAULT_LIMITS) as pair:
            closer, other = (pair.b, pair.a) if swap else (pair.a, pair.b)
            closer.send([b"%d" % number for number in range(1000)])
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(expect_closed(closer))
                await asyncio.sleep(0)
                group.create_task(closer.close(1012, "restart: päuse"))
                frames, there = await recv_until_closed(other)
                await other.close()
            assert len(frames) == 1000
            assert (there.close_code, there.message) == (1012, "restart: päuse")
            assert (await waiting).close_code == 1012
            assert closer.is_closed
            assert other.is_closed
            assert (await expect_closed(closer)).close_code == 1012
            assert (await expect_closed(other)).close_code == 1012


async def check_close_again(make_pair: MakePair) -> None:
    async with make_pair(DEFAULT_LIMITS) as pair:
        async with asyncio.TaskGroup() as group:
            for code in (1001, 1000, 1000):
                group.create_task(pair.a.close(code))
            closed = await expect_closed(pair.b)
            await pair.b.close()
        await pair.a.close()
        assert closed.close_code == 1001


async def check_close_drops_what_is_held(make_pair: MakePair) -> None:
    async with make_pair(DEFAULT_LIMITS) as pair:
        pair.a.send([b"due"])
        pair.a.send([b"held"], 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(pair.a.close())
            frames, closed = await recv_until_closed(pair.b)
            await pair.b.close()
        pair.gate.advance(1)
        assert (frames, closed.close_code) == ([b"due"], 1000)
        assert pair.a.queued_bytes == 0


async def check_close_forgets_what_was_on_its_way(make_pair: MakePair) -> None:
    async with make_pair(DEFAULT_LIMITS) as pair:
        pair.b.send([b"on its way"])
        async with asyncio.TaskGroup() as group:
            group.create_task(pair.a.close())
            assert (await expect_closed(pair.b)).close_code == 1000
            await pair.b.close()
        await asyncio.sleep(0)
        assert (await expect_closed(pair.a)).close_code == 1000


async def check_send_after_the_end(make_pair: MakePair) -> None:
    async with make_pair(DEFAULT_LIMITS) as pair:
        async with asyncio.TaskGroup() as group:
            group.create_task(pair.a.close())
            await expect_closed(pair.b)
            pair.b.send([b"too late"])
            await pair.b.close()
        for link in (pair.a, pair.b):
            link.send([b"too late"])
            link.send([b"too late"], 9)
            assert (link.frames_out, link.queued_bytes) == (0, 0)


async def check_peer_vanishes(make_pair: MakePair) -> None:
    for swap in (False, True):
        async with make_pair(DEFAULT_LIMITS) as pair:
            vanishing, left = (pair.b, pair.a) if swap else (pair.a, pair.b)
            await round_trip(pair)
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(expect_closed(vanishing))
                await asyncio.sleep(0)
                vanishing.abort()
                assert (await expect_closed(left)).close_code == 1006
            assert (await waiting).close_code == 1006
            assert left.is_closed
            left.send([b"into the void"])
            await left.close()


async def check_tap_and_counters(make_pair: MakePair) -> None:
    async with make_pair(DEFAULT_LIMITS) as pair:
        seen: list[tuple[str, bytes]] = []
        pair.a.tap = lambda direction, frame: seen.append((direction, frame))
        pair.a.send([b"one", b"two"])
        assert [await pair.b.recv() for _ in range(2)] == [b"one", b"two"]
        pair.b.send([b"three"])
        await pair.a.recv()
        assert seen == [("out", b"one"), ("out", b"two"), ("in", b"three")]
        assert (pair.a.frames_out, pair.a.bytes_out) == (2, 6)
        assert (pair.a.frames_in, pair.a.bytes_in) == (1, 5)
        assert (pair.b.frames_in, pair.b.bytes_in) == (2, 6)
        assert (pair.b.frames_out, pair.b.bytes_out) == (1, 5)


async def check_receive_time(make_pair: MakePair) -> None:
    async with make_pair(DEFAULT_LIMITS) as pair:
        sent_s = pair.clock.now()
        pair.a.send([b"now"])
        await pair.b.recv()
        assert sent_s <= pair.b.last_received_s <= pair.clock.now()


async def check_cancelled_recv_loses_nothing(make_pair: MakePair) -> None:
    async with make_pair(DEFAULT_LIMITS) as pair:
        for sender, receiver in [(pair.a, pair.b), (pair.b, pair.a)]:
            received = []
            for rounds in range(12):  # the cancel meets the frame at every point of its way
                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(receiver.recv())
                    await asyncio.sleep(0)
                    sender.send([b"%d" % rounds])
                    for _ in range(rounds):
                        await asyncio.sleep(0)
                    reading.cancel()
                if reading.cancelled():
                    received.append(await receiver.recv())
                else:
                    received.append(reading.result())
            assert received == [b"%d" % rounds for rounds in range(12)]
        async with asyncio.TaskGroup() as group:  # and the link still says goodbye properly
            group.create_task(pair.b.close(1001, "leaving"))
            assert (await expect_closed(pair.a)).close_code == 1001
            await pair.a.close()


async def check_slow_consumer_is_closed(make_pair: MakePair) -> None:
    for swap in (False, True):
        async with make_pair(SMALL_QUEUE) as pair:
            sender, sleeper = (pair.b, pair.a) if swap else (pair.a, pair.b)
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(expect_closed(sender))
                sent = 0
                while not sender.is_closed:
                    sender.send([b"x" * 65_536])
                    sent += 1
                    assert sent < 10_000, "nothing bounds the queue"
                    await asyncio.sleep(0)
                here = await waiting  # before the peer has read anything
                group.create_task(sender.close())
                frames, there = await recv_until_closed(sleeper)
                await sleeper.close()
            assert sender.queued_bytes == 0
            assert 0 < len(frames) < sent
            for closed in (here, there):
                assert closed.close_code == 1013
                assert closed.message == f"slow consumer: more than {MIB} bytes unread"


async def check_patient_sender_is_not_closed(make_pair: MakePair) -> None:
    async with make_pair(SMALL_QUEUE) as pair:
        for sender, receiver in [(pair.a, pair.b), (pair.b, pair.a)]:

            async def send_all(sender: Link = sender) -> None:
                for number in range(256):
                    await sender.wait_drained()
                    sender.send([b"%d " % number + b"x" * 65_536])

            async with asyncio.TaskGroup() as group:
                group.create_task(send_all())
                for number in range(256):
                    assert (await receiver.recv()).startswith(b"%d " % number)


async def check_waiting_sender_is_released(make_pair: MakePair) -> None:
    async with make_pair(SMALL_QUEUE) as pair:
        pair.a.send([b"x" * (MIB - 1000)], 1)  # held by the gate
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(pair.a.wait_drained())
            await round_trip(pair)
            assert not waiting.done()
            pair.a.abort()


async def check_waiting_sender_outlives_its_peer(make_pair: MakePair) -> None:
    async with make_pair(SMALL_QUEUE) as pair:
        while pair.a.queued_bytes <= MIB // 2:  # held by the peer, which does not read
            pair.a.send([b"x" * 65_536])
            await asyncio.sleep(0)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(pair.a.wait_drained())
            await asyncio.sleep(0)
            assert not waiting.done()
            pair.b.abort()
        assert pair.a.queued_bytes == 0


CHECKS: list[Check] = [
    check_order_and_sizes,
    check_text_is_untouched,
    check_flood_of_tiny_frames,
    check_burst_beyond_what_fits,
    check_gate_holds_back,
    check_refused_entries_are_dropped,
    check_largest_message,
    check_oversized_message,
    check_close_is_seen,
    check_close_again,
    check_close_drops_what_is_held,
    check_close_forgets_what_was_on_its_way,
    check_send_after_the_end,
    check_peer_vanishes,
    check_tap_and_counters,
    check_receive_time,
    check_cancelled_recv_loses_nothing,
    check_slow_consumer_is_closed,
    check_patient_sender_is_not_closed,
    check_waiting_sender_is_released,
    check_waiting_sender_outlives_its_peer,
]
