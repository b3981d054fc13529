"""The memory link keeps every link's promises, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentloop.clock import Clock, run_virtual
from agentloop.errors import Deadlock
from agentloop.gate import Gate
from agentloop.link.api import LinkLimits
from agentloop.link.memory import memory_pair
from tests.link.conformance import CHECKS, Check, MakePair, Pair


def maker(clock: Clock) -> MakePair:
    @asynccontextmanager
    async def make_pair(limits: LinkLimits) -> AsyncIterator[Pair]:
        gate = Gate()
        a, b = memory_pair(clock, gate, limits=limits)
        yield Pair(a, b, gate, clock)
        await a.close()
        await b.close()

    return make_pair


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_memory_link_keeps_the_promise(check: Check):
    run_virtual(lambda clock: check(maker(clock)))  # type: ignore[arg-type, return-value]


def test_a_frame_keeps_the_time_of_its_arrival():
    async def main(clock: Clock) -> float:
        a, b = memory_pair(clock)
        await clock.sleep(1)
        a.send([b"early"])
        await clock.sleep(10)
        await b.recv()
        return b.last_received_s

    assert run_virtual(main) == 1.0


def test_waiting_for_nothing_is_a_deadlock():
    async def main(clock: Clock) -> None:
        _, b = memory_pair(clock)
        await b.recv()

    with pytest.raises(Deadlock, match=r"MemoryLink\.recv"):
        run_virtual(main)


def test_a_peer_that_never_reads_bounds_the_close():
    async def main(clock: Clock) -> tuple[float, int]:
        a, b = memory_pair(clock)
        a.send([b"x" * 300_000])
        a.send([b"never read"])
        await a.close(1001)
        return clock.now(), b.frames_in

    assert run_virtual(main) == (LinkLimits().close_timeout_s, 0)
