"""Which behavior a request gets.

    simulation.turns      the request's own script
    sim-script:NAME       a script file of the server
    sim-replay:NAME       a recorded trajectory of the server
    sim-echo, sim-seeded  by name
    any other model       the seeded agent, unless models are strict

To add a behavior, write a line into `_BY_MODEL`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from agentloop.behaviors.api import Behavior, Turn
from agentloop.behaviors.echo import Echo
from agentloop.behaviors.files import BUNDLED, find, load_script
from agentloop.behaviors.replay import READERS, Replay, load_trajectory
from agentloop.behaviors.scripted import Scripted
from agentloop.behaviors.seeded import Seeded
from agentloop.engine.api import Script
from agentloop.errors import ClientFault, ConfigError, ProtocolError
from agentloop.wire.requests import Simulation


class UnknownModel(ClientFault):
    """No behavior has this model's name."""

    code = "model_not_found"
    status = 404


class Catalog:
    """The behaviors of one server. Files are read when they are first asked for, once.

    Args:
        script_dirs: where script files and trajectories lie; bundled scripts come last.
        is_strict: refuse models that name no behavior.
        drives_tools: whether the seeded agent calls the client's tools.

    Raises:
        ConfigError: a directory is not there.
    """

    def __init__(
        self,
        script_dirs: Sequence[Path] = (),
        *,
        is_strict: bool = False,
        drives_tools: bool = False,
    ) -> None:
        for directory in script_dirs:
            if not directory.is_dir():
                raise ConfigError(f"{directory} is not a directory; scripts are looked for there")
        self.script_dirs = (*script_dirs, BUNDLED)
        self.seeded = Seeded(drives_tools=drives_tools)
        self._is_strict = is_strict
        self._by_model: dict[str, Behavior] = {}

    def behavior_for(self, model: str, simulation: Simulation | None) -> Behavior:
        """The behavior of a request.

        Raises:
            ProtocolError: the request's script cannot be said; `param` gives the part's path.
            ConfigError: the server's file cannot be read; the message names it.
            UnknownModel: no such file, or no such model and models are strict.
        """
        if simulation is None:
            return self._named(model)
        behavior = Scripted(simulation.turns) if simulation.turns else self._named(model)
        return behavior if simulation.turn is None else Pinned(behavior, simulation.turn)

    def _named(self, model: str) -> Behavior:
        kind, colon, name = model.partition(":")
        make = _BY_MODEL.get(kind + colon)
        if make is None:
            if self._is_strict:
                raise _unknown(f"no model {model!r}; there are: {', '.join(_BY_MODEL)}")
            return self.seeded
        if model not in self._by_model:
            self._by_model[model] = make(self, name)
        return self._by_model[model]

    def file(self, name: str, suffixes: Sequence[str]) -> Path:
        """The server's file of this name.

        Raises:
            UnknownModel: there is none, or `name` is not a plain name.
        """
        path = find(name, self.script_dirs, suffixes)
        if path is None:
            raise _unknown(f"the server has no file {name!r} ({' or '.join(suffixes)})")
        return path


class Pinned:
    """A behavior that takes every turn for turn `number`."""

    def __init__(self, behavior: Behavior, number: int) -> None:
        if number < 0:
            raise ProtocolError("simulation.turn must be at least 0", param="simulation.turn")
        self.key = f"{behavior.key}@{number}"
        self._behavior = behavior
        self._number = number

    def plan(self, turn: Turn) -> Script:
        return self._behavior.plan(replace(turn, number=self._number))


def _unknown(message: str) -> UnknownModel:
    return UnknownModel(message, param="model")


_BY_MODEL: Final[dict[str, Callable[[Catalog, str], Behavior]]] = {
    "sim-seeded": lambda catalog, _: catalog.seeded,
    "sim-echo": lambda catalog, _: Echo(),
    "sim-script:": lambda catalog, name: load_script(catalog.file(name, (".json",))),
    "sim-replay:": lambda catalog, name: Replay(load_trajectory(catalog.file(name, [*READERS]))),
}
