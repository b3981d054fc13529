"""Resolution: which behavior and which engine a create gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from agentloop.behaviors.api import Behavior
from agentloop.engine.api import Engine
from agentloop.wire.requests import Create, Simulation


class Behaviors(Protocol):
    """Chooses a behavior: by the request's own script, else by the model's name."""

    def behavior_for(self, model: str, simulation: Simulation | None) -> Behavior: ...


class Resolved(Struct, frozen=True):
    """What a create resolved to. `seed` seeds behavior and engine."""

    behavior: Behavior
    engine: Engine
    seed: int


class Resolver:
    """Resolves creates. One engine per profile, made when it is first asked for.

    Args:
        make_engine: profile name → engine; raises ConfigError for an unknown name.
        profile: the profile of requests that name none.
        seed: the seed of requests that bring none.
    """

    def __init__(
        self,
        behaviors: Behaviors,
        make_engine: Callable[[str], Engine],
        *,
        profile: str,
        seed: int,
    ) -> None:
        self._behaviors = behaviors
        self._make_engine = make_engine
        self._profile = profile
        self._seed = seed
        self._engines = {profile: make_engine(profile)}

    def resolve(self, create: Create) -> Resolved:
        """Behavior, engine and seed.

        Raises:
            ClientFault: an unknown model or profile, or a script that cannot be said.
        """
        simulation = create.simulation
        seed = self._seed if simulation is None or simulation.seed is None else simulation.seed
        profile = (simulation and simulation.profile) or self._profile
        behavior = self._behaviors.behavior_for(create.model, simulation)
        if profile not in self._engines:
            self._engines[profile] = self._make_engine(profile)
        return Resolved(behavior, self._engines[profile], seed)

    async def close(self) -> None:
        """Close every engine."""
        for engine in self._engines.values():
            await engine.close()
