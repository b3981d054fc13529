"""The table of profiles."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agentloop.engine.sim.profiles import GPU65, PROFILES, profile
from agentloop.errors import ConfigError


def test_known_profiles() -> None:
    assert {"gpu65", "spark1000", "spark4000", "instant"} <= set(PROFILES)
    assert all(profile(name).name == name for name in PROFILES)
    assert [name for name, each in PROFILES.items() if each.is_instant] == ["instant"]


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="gpu65, spark1000, spark4000, instant"):
        profile("gpu66")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slots", 0),
        ("block_tokens", 0),
        ("step_ms", -1.0),
        ("acceptance_easy", 1.5),
        ("dwell_tokens_hard", 0.5),
        ("load_factor_max", 0.9),
    ],
)
def test_an_impossible_profile_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"gpu65: {field} must be"):
        replace(GPU65, **{field: value})
