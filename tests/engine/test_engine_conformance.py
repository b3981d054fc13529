"""Each profile of the simulated engine keeps every promise of the interface."""

from __future__ import annotations

import pytest

from agentloop.engine.sim.profiles import PROFILES
from agentloop.engine.sim.replica import SimEngine
from tests.engine.conformance import check_engine
from tests.engine.sim_kit import JumpClock


@pytest.mark.parametrize("name", PROFILES)
async def test_simulated_engine_conforms(name: str) -> None:
    await check_engine(
        lambda: SimEngine(PROFILES[name], JumpClock()), lose_prefixes=SimEngine.lose_prefixes
    )
