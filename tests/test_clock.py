"""Virtual time: exact, repeatable, fast, and never a hang."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web

from agentloop.clock import Clock, VirtualLoop, WallClock, run_virtual
from agentloop.errors import ConfigError, Deadlock


def test_eight_hours_pass_exactly():
    async def main(clock: Clock) -> tuple[float, float]:
        expected_s = 0.0
        for _ in range(4_000):
            await clock.sleep(7.2)
            expected_s += 7.2
        return clock.now(), expected_s

    now_s, expected_s = run_virtual(main)
    assert now_s == expected_s
    assert now_s == pytest.approx(8 * 60 * 60)


def test_timers_are_met_to_the_last_bit(seed: int):
    async def main(clock: Clock) -> list[tuple[float, float]]:
        source = random.Random(seed)
        met = []
        for _ in range(100):
            when_s = clock.now() + source.random() * 10 ** source.randrange(-9, 5)
            fired = asyncio.Event()
            clock.call_at(when_s, fired.set)
            await fired.wait()
            met.append((clock.now(), when_s))
        return met

    assert all(now_s == when_s for now_s, when_s in run_virtual(main))


def test_a_sleep_may_be_longer_than_a_selector_can_wait():
    async def main(clock: Clock) -> float:
        await clock.sleep(100 * 24 * 60 * 60.0)
        return clock.now()

    assert run_virtual(main) == 100 * 24 * 60 * 60.0


def test_timers_fire_in_order_of_time_and_the_past_fires_soon():
    async def main(clock: Clock) -> list[tuple[str, float]]:
        fired: list[tuple[str, float]] = []
        await clock.sleep(5)

        def note(name: str) -> None:
            fired.append((name, clock.now()))

        for name, when_s in [("late", 7.25), ("past", 1.0), ("early", 6.5)]:
            clock.call_at(when_s, partial(note, name))
        await clock.sleep(10)
        return fired

    assert run_virtual(main) == [("past", 5.0), ("early", 6.5), ("late", 7.25)]


def test_a_cancelled_timer_does_not_move_time():
    async def main(clock: Clock) -> float:
        clock.call_at(1000.0, lambda: None).cancel()
        await clock.sleep(1)
        return clock.now()

    assert run_virtual(main) == 1.0


def test_asyncio_timeouts_follow_virtual_time():
    async def main(clock: Clock) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await clock.sleep(60)
        return clock.now()

    assert run_virtual(main) == 30.0


def test_timestamp_is_the_same_in_every_run():
    async def main(clock: Clock) -> float:
        await clock.sleep(1.5)
        return clock.timestamp()

    assert run_virtual(main) == run_virtual(main) == 1_735_689_601.5


def test_runs_repeat(seed: int):
    async def walk(clock: Clock, name: str, log: list[tuple[float, str]], source: random.Random):
        for _ in range(50):
            await clock.sleep(source.choice([0, 0.001, 0.25]))
            log.append((clock.now(), name))

    async def main(clock: Clock) -> list[tuple[float, str]]:
        log: list[tuple[float, str]] = []
        source = random.Random(seed)
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(walk(clock, f"walker-{number}", log, source))
        return log

    assert run_virtual(main) == run_virtual(main)


def test_a_deadlock_names_who_waits_and_where():
    async def wait_for_nobody(event: asyncio.Event) -> None:
        await event.wait()

    async def main(_: Clock) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_nobody(asyncio.Event()), name="forlorn")

    with pytest.raises(Deadlock) as caught:
        run_virtual(main)
    line = next(line for line in caught.value.message.splitlines() if "forlorn" in line)
    assert "wait_for_nobody (test_clock.py:" in line
    assert "> Event.wait (locks.py:" in line


def test_a_long_list_of_waiting_tasks_is_cut():
    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main(_clock: Clock) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(wait_for_nobody())

    with pytest.raises(Deadlock, match=r"waiting tasks: 51\n(.*\n){20}  and 31 more$"):
        run_virtual(main)


def test_a_task_that_will_not_end_is_a_deadlock_and_not_a_hang():
    async def main(_: Clock) -> None:
        async def stubborn() -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue

        task = asyncio.get_running_loop().create_task(stubborn(), name="stubborn")
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    with pytest.raises(Deadlock, match="stubborn"):
        run_virtual(main)


def test_exceptions_come_out_and_leftovers_are_cancelled():
    ended: list[str] = []

    async def leftover() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("leftover")

    async def main(_: Clock) -> None:
        task = asyncio.get_running_loop().create_task(leftover())
        await asyncio.sleep(0)
        assert not task.done()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(main)
    assert ended == ["leftover"]


def test_threads_are_refused():
    async def main(_: Clock) -> None:
        await asyncio.to_thread(sorted, [])

    with pytest.raises(ConfigError, match="virtual time runs no threads"):
        run_virtual(main)


def test_real_sockets_work_in_virtual_time():
    async def main(clock: Clock) -> tuple[list[bytes], float]:
        async def answer(request: web.Request) -> web.Response:
            await clock.sleep(3600)
            return web.Response(body=await request.read())

        app = web.Application()
        app.router.add_post("/", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        bodies = []
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for _ in range(3):
                async with session.post(f"http://{host}:{port}/", data=b"x" * 100_000) as response:
                    bodies.append(await response.read())
        now_s = clock.now()
        await runner.cleanup()
        return bodies, now_s

    bodies, now_s = run_virtual(main)
    assert bodies == [b"x" * 100_000] * 3
    assert 3 * 3600 <= now_s < 4 * 3600


def test_a_deadlock_beside_an_open_socket_is_found_too():
    async def main(_: Clock) -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with server:
            await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(main)


def test_a_virtual_loop_closes_cleanly():
    loop = VirtualLoop()
    loop.run_until_complete(asyncio.sleep(5))
    assert loop.time() == 5.0
    loop.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_the_wall_clock_never_wakes_early(run: Callable[[Coroutine[Any, Any, None]], None]):
    async def main() -> None:
        clock = WallClock()
        for delay_s in (0.0, -1.0, 0.000_2, 0.001_4, 0.002_4, 0.003):
            start_s = clock.now()
            await clock.sleep(delay_s)
            assert clock.now() - start_s >= delay_s

    run(main())


async def test_the_wall_clock_calls_back_in_order():
    clock = WallClock()
    called: list[str] = []
    done = asyncio.Event()
    clock.call_at(clock.now() + 0.004, done.set)
    clock.call_at(clock.now() + 0.002, partial(called.append, "second"))
    clock.call_at(clock.now() - 1, partial(called.append, "first"))
    await done.wait()
    assert called == ["first", "second"]


def test_wall_time_is_finer_than_the_loops():
    async def main() -> None:
        clock = WallClock()
        readings = {clock.now() for _ in range(1000)}
        assert len(readings) > 10  # though the loop has not turned once
        assert clock.timestamp() > 1_700_000_000

    uvloop.run(main())
