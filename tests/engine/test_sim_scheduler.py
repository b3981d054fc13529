"""The scheduler: exact times, order, ends of every kind, and what each leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean, quantiles

import pytest
from msgspec.structs import replace

from agentloop.engine.api import Fault, PrefixLost, Sample, Stall
from agentloop.engine.sim.profiles import GPU65, INSTANT, SPARK1000
from agentloop.engine.sim.scheduler import BURST_STEPS
from agentloop.errors import EngineFault
from tests.engine.sim_kit import MS, PLAIN, Driver, make_request, sample

ROOT = Path(__file__).parents[2]


def test_first_step_comes_with_the_prefill_and_each_other_a_gap_later() -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("a", sample(4), prompt=range(10)))
    driver.run()
    assert driver.times_ms("a") == [20, 25, 30, 35]
    assert driver.finish_ms("a") == 35
    usage = driver.finish("a").usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (10, 0, 4)
    assert (usage.queue_s, usage.prefill_s, usage.decode_s) == (0.0, 0.02, 0.015)
    assert driver.finish("a").reason == "stop"


def test_a_cached_prefix_shortens_the_prefill() -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("a", sample(6), prompt=range(10)))  # 12 of 16 tokens in blocks
    driver.run()
    begun_ms = driver.finish_ms("a")
    driver.submit(make_request("b", sample(1), prompt=range(5), prefix=driver.finish("a").prefix))
    driver.run()
    assert driver.finish("b").usage.cached_tokens == 12
    assert driver.times_ms("b") == [begun_ms + 10 + (16 + 5 - 12)]


def test_step_time_grows_with_context() -> None:
    driver = Driver(replace(PLAIN, step_ms_per_context_token=1.0))
    driver.submit(make_request("a", sample(4), prompt=range(10)))
    driver.run()
    assert [b - a for a, b in pairwise(driver.times_ms("a"))] == [5 + 11, 5 + 12, 5 + 13]


def test_load_slows_prefill_and_steps() -> None:
    driver = Driver(replace(PLAIN, load_factor_max=2.0, slots=2))
    driver.submit(make_request("a", sample(5)))
    driver.run(until_ns=21 * MS)
    driver.submit(make_request("b", sample(1)))
    driver.run()
    assert driver.times_ms("b") == [21 + 2 * (10 + 10 - 8 + 0)]  # 8 of its 10 tokens are cached
    # The step in flight keeps its time; those begun while both run take twice as long.
    assert driver.times_ms("a") == [20, 25, 35, 45, 55]


def test_slots_are_given_in_order_of_arrival() -> None:
    driver = Driver(PLAIN)
    for name in "abcd":
        driver.submit(make_request(name, sample(1), prompt=range(10), salt=name))
    assert (driver.scheduler.running, driver.scheduler.queued) == (2, 2)
    driver.run()
    assert [driver.finish_ms(name) for name in "abcd"] == [20, 20, 40, 40]
    assert [driver.finish(name).usage.queue_s for name in "abcd"] == [0, 0, 0.02, 0.02]


def test_a_slot_freed_unseen_is_not_given_to_the_past() -> None:
    driver = Driver(replace(PLAIN, slots=1))
    driver.submit(make_request("a", sample(1)))  # ends at 20 ms, which nobody has pulled yet
    driver.now_ns = 27 * MS
    driver.submit(make_request("b", sample(1), salt="b"))
    driver.run()
    assert driver.finish("b").usage.queue_s == 0
    assert driver.times_ms("b") == [47]


def test_a_full_queue_refuses_and_keeps_its_order() -> None:
    driver = Driver(PLAIN)
    for name in "abcde":
        driver.submit(make_request(name, sample(1)))
    with pytest.raises(EngineFault) as fault:
        driver.submit(make_request("f", sample(1)))
    assert (fault.value.code, fault.value.is_retryable) == ("overloaded", True)
    driver.run()
    assert list(driver.finishes) == list("abcde")


@pytest.mark.parametrize(
    ("prompt_tokens", "code"), [(0, "empty_prompt"), (1_001, "context_length_exceeded")]
)
def test_an_impossible_prompt_is_refused(prompt_tokens: int, code: str) -> None:
    driver = Driver(PLAIN)
    with pytest.raises(EngineFault) as fault:
        driver.submit(make_request("a", prompt=range(prompt_tokens)))
    assert (fault.value.code, fault.value.is_retryable) == (code, False)
    assert driver.scheduler.next_due_ns() is None


def test_a_prefix_counts_towards_the_context() -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("a", sample(10), prompt=range(900)))
    driver.run()
    prefix = driver.finish("a").prefix
    with pytest.raises(EngineFault, match="has 1001 tokens; plain takes at most 1000"):
        driver.submit(make_request("b", prompt=range(91), prefix=prefix))


@pytest.mark.parametrize(
    ("output_max", "output_count", "said", "reason"),
    [
        (3, 0, 3, "length"),
        (5, 0, 5, "stop"),  # the model ended its turn with the last token allowed
        (9, 6, 3, "length"),
        (3, 3, 0, "length"),
        (3, 8, 0, "length"),
    ],
)
def test_output_is_bounded(output_max: int, output_count: int, said: int, reason: str) -> None:
    driver = Driver(PLAIN)
    script = (sample(2), Sample(()), sample(3, first=102))
    driver.submit(make_request("a", *script, output_max=output_max, output_count=output_count))
    driver.run()
    assert driver.ids("a") == list(range(100, 100 + said))
    assert driver.finish("a").reason == reason
    assert driver.finish("a").usage.output_tokens == said


def test_the_context_bounds_output() -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("a", sample(20), prompt=range(990)))
    driver.run()
    assert driver.finish("a").reason == "length"
    assert driver.finish("a").usage.output_tokens == 10


def test_an_empty_script_stops_at_once() -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("a"))
    driver.run()
    assert (driver.finish("a").reason, driver.finish_ms("a")) == ("stop", 20)


def test_a_stall_delays_what_follows() -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("a", Stall(0.1), sample(2), Stall(0.3), sample(1), Stall(0.05)))
    driver.run()
    assert driver.times_ms("a") == [120, 125, 430]
    assert driver.finish_ms("a") == 480


def test_a_step_stays_inside_its_part() -> None:
    driver = Driver(replace(PLAIN, draft_count=7, acceptance_hard=1.0, acceptance_easy=1.0))
    driver.submit(make_request("a", sample(10), sample(3), sample(9)))
    driver.run()
    assert [len(ids) for _, ids in driver.steps["a"]] == [8, 2, 3, 8, 1]


@pytest.mark.parametrize("is_retryable", [True, False])
def test_a_fault_ends_after_what_was_said(is_retryable: bool) -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("a", sample(2), Fault("overloaded", is_retryable), sample(2)))
    driver.run()
    finish = driver.finish("a")
    assert (finish.reason, driver.finish_ms("a"), len(driver.ids("a"))) == ("error", 25, 2)
    assert finish.error is not None
    assert (finish.error.code, finish.error.is_retryable) == ("overloaded", is_retryable)
    assert finish.prefix is not None
    assert finish.prefix.token_count == 12


CANCELS = {
    # when, then: the finish, ids said, ids discarded, is there a handle
    "in the prefill": (3, 8, 0, 0, False),
    "near the end of the prefill": (18, 20, 0, 0, False),
    "in the first stall": (22, 27, 0, 0, True),
    "between steps": (52, 55, 1, 1, True),
    "in a later stall": (70, 75, 3, 0, True),
}


@pytest.mark.parametrize(
    ("at_ms", "end_ms", "said", "discarded", "has_handle"), CANCELS.values(), ids=CANCELS.keys()
)
def test_a_cancel_frees_the_slot_within_a_step(
    at_ms: int, end_ms: int, said: int, discarded: int, has_handle: bool
) -> None:
    driver = Driver(replace(PLAIN, slots=1))
    job = driver.submit(make_request("a", Stall(0.03), sample(3), Stall(1.0), sample(3)))
    driver.submit(make_request("b", sample(1), salt="b"))
    driver.run(until_ns=at_ms * MS)
    driver.cancel(job)
    driver.cancel(job)
    driver.run()
    finish = driver.finish("a")
    assert (finish.reason, driver.finish_ms("a")) == ("cancel", end_ms)
    assert (finish.usage.output_tokens, finish.usage.discarded_tokens) == (said, discarded)
    assert (finish.prefix is not None) == has_handle
    assert driver.finish("b").usage.queue_s == end_ms / 1000
    driver.cancel(job)
    assert driver.scheduler.next_due_ns() is None


def test_a_cancel_in_the_queue_leaves_it_at_once() -> None:
    driver = Driver(replace(PLAIN, slots=1))
    driver.submit(make_request("a", sample(1)))
    waiting = driver.submit(make_request("b", sample(1)))
    driver.submit(make_request("c", sample(1), salt="c"))
    driver.run(until_ns=4 * MS)
    driver.cancel(waiting)
    assert driver.scheduler.queued == 1
    driver.run()
    assert driver.finish_ms("b") == 4
    assert driver.finish("b").usage.queue_s == 0.004
    assert driver.finish("b").prefix is None
    assert driver.finish("c").usage.queue_s == 0.02


def test_a_dead_replica_fails_everything_and_holds_nothing() -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("done", sample(2)))
    driver.run()
    for name in "abc":
        driver.submit(make_request(name, sample(50), prompt=range(20, 30)))
    driver.run(until_ns=driver.now_ns + 30 * MS)
    driver.scheduler.kill(driver.now_ns)
    killed_ms = driver.now_ns / MS
    driver.run()
    for name in "abc":
        finish = driver.finish(name)
        assert (finish.reason, finish.prefix, driver.finish_ms(name)) == ("error", None, killed_ms)
        assert finish.error is not None
        assert (finish.error.code, finish.error.is_retryable) == ("replica_lost", True)
    with pytest.raises(PrefixLost):
        driver.submit(make_request("d", prefix=driver.finish("done").prefix))
    driver.submit(make_request("e", sample(1)))
    driver.run()
    assert driver.finish("e").usage.cached_tokens == 0


def test_lost_prefixes_do_not_touch_what_runs() -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("idle", sample(2)))
    driver.run()
    driver.submit(make_request("a", sample(20), prompt=range(20, 40)))
    driver.run(until_ns=driver.now_ns + 50 * MS)
    driver.scheduler.lose_prefixes()
    driver.run()
    driver.submit(make_request("b", sample(1), prefix=driver.finish("a").prefix))
    driver.run()
    assert driver.finish("b").usage.cached_tokens == 36
    with pytest.raises(PrefixLost):
        driver.submit(make_request("c", prefix=driver.finish("idle").prefix))


def test_a_queued_prefix_is_kept_while_it_waits() -> None:
    driver = Driver(replace(PLAIN, slots=1, idle_ttl_s=1.0))
    driver.submit(make_request("a", sample(2)))
    driver.run()
    driver.submit(make_request("b", Stall(5.0), salt="b"))
    driver.submit(make_request("c", sample(1), prefix=driver.finish("a").prefix))
    driver.run()
    assert driver.finish("c").usage.cached_tokens == 8


def test_a_late_caller_changes_when_things_arrive_and_nothing_else() -> None:
    def run(advance: Callable[[Driver], None]) -> Driver:
        driver = Driver(replace(SPARK1000, slots=2, load_factor_max=2.0))
        for index in range(6):
            part = sample(150 + 40 * index)
            driver.submit(make_request(str(index), part, Stall(0.01), part, salt=str(index)))
        advance(driver)
        return driver

    def advance_late(driver: Driver) -> None:
        while driver.scheduler.next_due_ns() is not None:
            driver.now_ns += 17 * MS
            driver.pull_all()

    prompt, late = run(Driver.run), run(advance_late)
    for name in prompt.finishes:
        assert [ids for _, ids in prompt.steps[name]] == [ids for _, ids in late.steps[name]]
        assert prompt.finish(name).usage == late.finish(name).usage
        for on_time, delivered in zip(prompt.times_ms(name), late.times_ms(name), strict=True):
            assert on_time <= delivered < on_time + 17


def test_instant_streams_take_turns() -> None:
    driver = Driver(INSTANT)
    for name in "ab":
        driver.submit(make_request(name, sample(300)))
    order = []
    while (due := driver.scheduler.pull(0)) is not None:
        assert len(due.sizes) <= BURST_STEPS
        order += [due.job.id] if due.sizes else []
    assert order == list("abababababab")[: len(order)]
    assert len(order) == 10


def test_gpu65_at_85k_context_is_about_65_tokens_per_second(seed: int) -> None:
    driver = Driver(GPU65)
    driver.submit(make_request("a", sample(500), prompt=range(85_000), seed=seed))
    driver.run()
    assert 499 / driver.finish("a").usage.decode_s == pytest.approx(65, rel=0.015)
    assert all(len(ids) == 1 for _, ids in driver.steps["a"])


def test_spark1000_has_the_published_mean_and_bursts(seed: int) -> None:
    """Mean 1,014 tokens/s; windows of 20 ms: p50 850, p99 3,450, maximum 4,250."""
    tokens = 200_000
    profile = replace(
        SPARK1000, context_tokens_max=10**6, step_ms_per_context_token=0.0, step_jitter=0.0
    )
    driver = Driver(profile)
    driver.submit(make_request("a", sample(tokens), output_max=tokens, seed=seed))
    driver.run()
    assert tokens / driver.finish("a").usage.decode_s == pytest.approx(1_014, rel=0.03)
    assert fmean(len(ids) for _, ids in driver.steps["a"]) == pytest.approx(2.03, rel=0.03)

    begin_ns = driver.steps["a"][0][0]
    windows = [0] * (1 + (driver.now_ns - begin_ns) // (20 * MS))
    for time_ns, ids in driver.steps["a"]:
        windows[(time_ns - begin_ns) // (20 * MS)] += len(ids)
    rates = [50 * count for count in windows]
    percentiles = quantiles(rates, n=100)
    assert percentiles[49] == pytest.approx(850, abs=100)
    assert percentiles[98] == pytest.approx(3_450, abs=300)
    assert 3_900 <= max(rates) <= 4_400


HASHED = """
from hashlib import blake2b
from agentloop.engine.api import Stall
from agentloop.engine.sim.profiles import SPARK1000
from tests.engine.sim_kit import Driver, make_request, sample
driver = Driver(SPARK1000)
for name in "abc":
    driver.submit(make_request(name, sample(400), Stall(0.1), sample(90), salt=name, seed=7))
driver.run()
print(blake2b(repr((driver.steps, driver.finishes)).encode()).hexdigest())
"""


def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    def run(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", HASHED]
        return subprocess.run(
            command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    assert run("1") == run("2")
