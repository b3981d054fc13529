"""Which behavior a request gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentloop.behaviors.catalog import Catalog, UnknownModel
from agentloop.errors import ConfigError, ProtocolError
from agentloop.wire.requests import ScriptedPart, Simulation
from tests.behaviors.behavior_kit import heard, turn_of, user

SAYS_HI = Simulation(turns=[[ScriptedPart(text="hi")], [ScriptedPart(text="ho")]])


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "greet.json").write_text('{"turns": [[{"text": "good day"}]]}')
    (tmp_path / "bad.json").write_text('{"turns": [[]]}')
    (tmp_path / "run.traj").write_text(
        '{"history": [{"role": "system", "content": ""}, {"role": "user", "content": ""},'
        '{"role": "assistant", "content": "recorded"}], "trajectory": [{}]}'
    )
    return Catalog([tmp_path])


def says(catalog: Catalog, model: str, simulation: Simulation | None = None, turn: int = 0) -> str:
    behavior = catalog.behavior_for(model, simulation)
    return heard(behavior.plan(turn_of(turn, items=[user("echo me")])))[0][2]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("sim-script:greet", "good day"),
        ("sim-replay:run", "recorded"),
        ("sim-echo", "echo me"),
    ],
)
def test_models_by_name(catalog: Catalog, model: str, text: str) -> None:
    assert says(catalog, model) == text
    assert says(catalog, model, Simulation(profile="gpu65")) == text
    assert says(catalog, model, SAYS_HI) == "hi"


def test_bundled_scripts_are_found_without_a_directory() -> None:
    kinds = [
        heard(Catalog().behavior_for("sim-script:fix-slugify", None).plan(turn_of(number)))[-1][0]
        for number in range(6)
    ]
    assert kinds == ["function_call"] * 5 + ["message"]


@pytest.mark.parametrize("model", ["gpt-5.1-codex", "sim-else", "sim-echo:x", "sim-script", ""])
def test_any_other_model_is_the_seeded_agent_unless_strict(catalog: Catalog, model: str) -> None:
    assert catalog.behavior_for(model, None).key == "seeded"
    with pytest.raises(UnknownModel) as refusal:
        Catalog(is_strict=True).behavior_for(model, None)
    error = refusal.value
    assert (error.code, error.status, error.param) == ("model_not_found", 404, "model")


def test_strict_models_have_names() -> None:
    strict = Catalog(is_strict=True)
    assert strict.behavior_for("sim-seeded", None).key == "seeded"
    assert says(strict, "any", SAYS_HI) == "hi"


def test_only_a_driving_catalog_drives() -> None:
    assert Catalog(drives_tools=True).behavior_for("any", None).key == "seeded-driving"


@pytest.mark.parametrize(
    "model", ["sim-script:absent", "sim-script:", "sim-script:../greet", "sim-replay:run.traj"]
)
def test_a_file_that_is_not_there(catalog: Catalog, model: str) -> None:
    with pytest.raises(UnknownModel, match="has no file"):
        catalog.behavior_for(model, None)


def test_a_file_that_is_wrong(catalog: Catalog) -> None:
    with pytest.raises(ConfigError, match=r"bad\.json: script\.turns\[0\]: a turn must hold"):
        catalog.behavior_for("sim-script:bad", None)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent is not a directory"):
        Catalog([tmp_path, tmp_path / "absent"])


def test_a_file_is_read_once(catalog: Catalog) -> None:
    first = catalog.behavior_for("sim-script:greet", None)
    assert catalog.behavior_for("sim-script:greet", None) is first


@pytest.mark.parametrize(("pinned", "text"), [(None, "ho"), (0, "hi"), (7, "done")])
def test_a_pinned_turn_is_said_whatever_its_number(
    catalog: Catalog, pinned: int | None, text: str
) -> None:
    simulation = Simulation(turns=SAYS_HI.turns, turn=pinned)
    assert says(catalog, "any", simulation, turn=1) == text


def test_pins_have_keys_of_their_own(catalog: Catalog) -> None:
    pins = [Simulation(turns=SAYS_HI.turns, turn=turn) for turn in (None, 0, 1)]
    assert len({catalog.behavior_for("any", pin).key for pin in pins}) == 3


def test_a_pin_is_not_negative(catalog: Catalog) -> None:
    with pytest.raises(ProtocolError) as refusal:
        catalog.behavior_for("any", Simulation(turn=-1))
    assert refusal.value.param == "simulation.turn"
