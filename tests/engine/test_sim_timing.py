"""The formulas of timing family H, and the chain that makes bursts."""

from __future__ import annotations

from statistics import fmean

import pytest
from msgspec.structs import replace

from agentloop.engine.sim.profiles import GPU65, INSTANT, SPARK1000, SPARK4000
from agentloop.engine.sim.timing import Pace, load_factor, prefill_ms, step_ms


def test_gpu65_prefill_and_step() -> None:
    """60 + 27 + 9 + 100 ms for 900 new tokens on 100,000 cached; 65 tokens/s at 85,000."""
    assert prefill_ms(GPU65, 900, 100_000) == pytest.approx(196.04, abs=0.01)
    assert 1000 / step_ms(GPU65, 85_000) == pytest.approx(65, abs=0.1)


def test_spark1000_prefill_and_step() -> None:
    assert prefill_ms(SPARK1000, 900, 100_000) == pytest.approx(97.52, abs=0.01)
    assert step_ms(SPARK1000, 100_000) == pytest.approx(2.2)


def test_load_grows_from_one_to_its_maximum() -> None:
    loaded = replace(GPU65, load_factor_max=1.5)
    assert load_factor(loaded, 1) == 1.0
    assert load_factor(loaded, loaded.slots) == 1.5
    assert load_factor(replace(loaded, slots=1), 1) == 1.0


def test_sizes_never_pass_their_limits() -> None:
    pace = Pace(SPARK1000, 0)
    assert sum(pace.sizes(10, 64, is_easy=True)) == 10
    assert len(pace.sizes(10_000, 64, is_easy=False)) == 64


def test_without_drafts_a_step_is_one_token() -> None:
    assert Pace(INSTANT, 0).sizes(3, 64, is_easy=True) == [1, 1, 1]
    assert Pace(INSTANT, 0).gaps_ns([1, 1, 1], 1_000) == []


def test_spark4000_is_eight_tokens_in_two_milliseconds() -> None:
    pace = Pace(SPARK4000, 0)
    assert pace.sizes(80, 64, is_easy=False) == [8] * 10
    assert set(pace.gaps_ns([8] * 10, 100_000)) == {2_000_000}


@pytest.mark.parametrize(("is_easy", "mean"), [(True, 7.21), (False, 2.03)])
def test_mean_tokens_per_step(is_easy: bool, mean: float, seed: int) -> None:
    """Easy: (1 - 0.97^8) / 0.03. Otherwise the mix of both states, weighted by their dwell."""
    sizes = Pace(SPARK1000, seed).sizes(200_000, 200_000, is_easy=is_easy)
    assert fmean(sizes) == pytest.approx(mean, rel=0.04)


def test_easy_text_holds_the_easy_state_and_leaves_the_chain_in_it() -> None:
    profile = replace(
        SPARK1000, acceptance_hard=0.0, acceptance_easy=1.0, dwell_tokens_easy=1e9,
        dwell_tokens_hard=1e12,
    )  # fmt: skip
    pace = Pace(profile, 0)
    assert set(pace.sizes(100, 100, is_easy=False)) == {1}
    assert set(pace.sizes(80, 100, is_easy=True)) == {8}
    assert set(pace.sizes(80, 100, is_easy=False)) == {8}


def test_jitter_has_mean_one(seed: int) -> None:
    profile = replace(GPU65, step_ms_per_context_token=0.0, step_jitter=0.4, prefill_jitter=0.4)
    gaps = Pace(profile, seed).gaps_ns([1] * 20_000, 0)
    assert fmean(gaps) / 13e6 == pytest.approx(1.0, abs=0.015)
    assert max(gaps) > 2 * 13e6
    factors = [Pace(profile, seed + index).prefill_jitter() for index in range(5_000)]
    assert fmean(factors) == pytest.approx(1.0, abs=0.03)


def test_streams_are_apart() -> None:
    """Another seed draws otherwise; jitter does not shift the sizes."""

    def sizes(profile=SPARK1000, seed=0):
        pace = Pace(profile, seed)
        pace.gaps_ns([1] * 10, 0)
        return pace.sizes(500, 500, is_easy=False)

    assert sizes() == sizes()
    assert sizes() != sizes(seed=1)
    assert sizes() == sizes(replace(SPARK1000, step_jitter=0.0))
