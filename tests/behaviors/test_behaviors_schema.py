"""Values for JSON schemas: valid by an independent reading, or refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.behaviors.schema import CannotFill, fill, parse_schema

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "null": (type(None),), "array": (list,), "object": (dict,),
}  # fmt: skip


def is_valid(schema: Any, value: Any, root: Any = None) -> bool:
    """JSON Schema, as far as these tests use it, straight from its specification."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    checks = {
        "type": lambda wanted: any(
            isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
            for name in ([wanted] if isinstance(wanted, str) else wanted)
        ),
        "enum": lambda values: any(value == v and type(value) is type(v) for v in values),
        "const": lambda wanted: value == wanted,
        "anyOf": lambda variants: any(is_valid(v, value, root) for v in variants),
        "oneOf": lambda variants: sum(is_valid(v, value, root) for v in variants) == 1,
        "$ref": lambda ref: is_valid(root["$defs"][ref.split("/")[-1]], value, root),
        "required": lambda names: not isinstance(value, dict) or set(names) <= set(value),
        "properties": lambda inner: (
            not isinstance(value, dict)
            or all(is_valid(inner[name], value[name], root) for name in inner if name in value)
        ),
        "additionalProperties": lambda inner: (
            not isinstance(value, dict)
            or all(
                is_valid(inner, value[name], root)
                for name in value
                if name not in schema.get("properties", {})
            )
        ),
        "items": lambda inner: (
            not isinstance(value, list) or all(is_valid(inner, each, root) for each in value)
        ),
        "minItems": lambda least: not isinstance(value, list) or len(value) >= least,
        "maxItems": lambda most: not isinstance(value, list) or len(value) <= most,
        "minLength": lambda least: not isinstance(value, str) or len(value) >= least,
        "maxLength": lambda most: not isinstance(value, str) or len(value) <= most,
        "minimum": lambda low: not is_number or value >= low,
        "maximum": lambda high: not is_number or value <= high,
        "exclusiveMinimum": lambda low: not is_number or value > low,
        "exclusiveMaximum": lambda high: not is_number or value < high,
        "multipleOf": lambda step: not is_number or value % step == 0,
    }
    return all(checks[key](asked) for key, asked in schema.items() if key in checks)


def filled(schema: Any, seed: int = 0) -> Any:
    return fill(parse_schema(schema), Random(seed))


SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
BOUNDS = st.tuples(st.integers(-(2**70), 2**70), st.integers(0, 40))


def strings() -> st.SearchStrategy[Any]:
    sizes = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)
    lengths = sizes.map(lambda size: {"minLength": size[0], "maxLength": size[1]})
    formats = st.just({"format": "uri", "description": "an address"})
    return (lengths | formats).map(lambda more: {"type": "string", **more})


def numbers() -> st.SearchStrategy[Any]:
    keys = st.sampled_from(
        [("minimum", "maximum", 0), ("exclusiveMinimum", "exclusiveMaximum", 2),
         ("minimum", "exclusiveMaximum", 1)]
    )  # fmt: skip
    types = st.sampled_from(["integer", "number"])
    bounded = st.builds(
        lambda kind, key, b: {"type": kind, key[0]: b[0], key[1]: b[0] + b[1] + key[2]},
        types, keys, BOUNDS,
    )  # fmt: skip
    halves = st.integers(-50, 50).map(
        lambda n: {"type": "number", "exclusiveMinimum": n, "exclusiveMaximum": n + 0.5}
    )
    one_sided = st.builds(
        lambda kind, key, bound: {"type": kind, key: bound},
        types,
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
        st.integers(-100, 100) | st.floats(-100, 100),
    )
    steps = st.builds(
        lambda step, key, bound: {"type": "integer", "multipleOf": step, key: bound},
        st.integers(1, 40), st.sampled_from(["minimum", "maximum"]), st.integers(-100, 100),
    )  # fmt: skip
    return bounded | halves | one_sided | steps


LEAVES: st.SearchStrategy[Any] = (
    strings()
    | numbers()
    | st.just(True)
    | st.just({})
    | st.lists(SCALARS, min_size=1).map(lambda values: {"enum": values})
    | SCALARS.map(lambda value: {"const": value})
    | st.lists(st.sampled_from([*TYPES]), min_size=1, unique=True).map(lambda t: {"type": t})
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.text(max_size=3), inner, max_size=4)
    return st.builds(
        lambda each, count, others: {
            "type": "object",
            "properties": each,
            "required": sorted(each)[:count],
            "additionalProperties": others,
        },
        properties, st.integers(0, 4), st.booleans(),
    )  # fmt: skip


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.builds(
        lambda items, least, more: {
            "type": "array", "items": items, "minItems": least, "maxItems": least + more
        },
        inner, st.integers(0, 3), st.integers(0, 2),
    )  # fmt: skip
    unions = st.lists(inner, min_size=1, max_size=3).map(lambda all_: {"anyOf": all_})
    apart = st.tuples(strings(), arrays).map(lambda pair: {"oneOf": [*pair], "title": "one"})
    return objects(inner) | arrays | unions | apart


@given(schema=objects(st.recursive(LEAVES, nested, max_leaves=8)), seed=st.integers(0, 9))
def test_a_value_is_valid(schema: Any, seed: int) -> None:
    value = filled(schema, seed)
    assert is_valid(schema, value)
    assert filled(schema, seed) == value


def test_definitions_are_followed_and_recursion_ends() -> None:
    tree = {
        "type": "object",
        "properties": {
            "name": {"$ref": "#/$defs/name"},
            "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            "leaves": {"type": "array", "items": {"$ref": "#"}},
        },
        "required": ["name", "next", "leaves"],
        "$defs": {"name": {"type": "string", "maxLength": 2}},
    }
    for seed in range(20):
        node = filled(tree, seed)
        while node is not None:
            assert node.keys() == {"name", "next", "leaves"}
            assert len(node["name"]) <= 2
            node = node["next"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a+$"},
        {"type": "object", "patternProperties": {}},
        {"allOf": [{}]},
        {"not": {}},
        {"type": "string", "minLength": 5, "maxLength": 4},
        {"type": "string", "minLength": 10**9},
        {"type": "integer", "minimum": 0.2, "maximum": 0.8},
        {"type": "number", "minimum": 2, "maximum": 1},
        {"type": "number", "exclusiveMinimum": 1.5, "exclusiveMaximum": 1.5},
        {"type": "integer", "multipleOf": 10, "minimum": 11, "maximum": 19},
        {"type": "integer", "multipleOf": -3},
        {"type": "array", "items": {"const": 1}, "minItems": 2, "uniqueItems": True},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "array", "items": {"type": "array", "minItems": 900}, "minItems": 900},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "minProperties": 1},
        {"type": "string", "enum": [1, True]},
        {"type": "string", "anyOf": [{"type": "integer"}]},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"oneOf": [{"type": "string"}, {}]},
        {"enum": ["a"], "minLength": 2},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}] * 9},
        {"type": "datetime"},
        {"type": 7},
        {"required": "name"},
        {"minimum": "1"},
        [],
        None,
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused(schema: Any) -> None:
    with pytest.raises(CannotFill):
        filled(schema)


JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(
    ["type", "enum", "const", "properties", "required", "items", "minItems", "anyOf", "oneOf",
     "$ref", "minimum", "exclusiveMaximum", "multipleOf", "minLength", "additionalProperties"]
)  # fmt: skip


@given(schema=st.dictionaries(KEYS, JSON | st.sampled_from([*TYPES, "#"])))
def test_nonsense_is_refused_and_nothing_worse(schema: Any) -> None:
    try:
        filled(schema)
    except CannotFill:
        return
