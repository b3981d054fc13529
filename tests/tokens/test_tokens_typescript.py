"""Tools as TypeScript, token for token as the oracle shows them; the rest as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.tokens.render import Head, render_head
from agentloop.tokens.typescript import is_in_subset, tools_section
from agentloop.tokens.vocabulary import vocabulary
from agentloop.wire.items import FunctionTool
from tests.tokens import oracle

Schema = dict[str, Any]

defaults = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-(10**6), 10**6).map(lambda n: n / 1000),
    st.sampled_from([1e16, -2.5e-7, 1e21, 0.0, -0.0]),  # long ones the oracle reads inexactly
    st.text(max_size=8),
    st.dictionaries(st.text(max_size=3), st.lists(st.integers(0, 9), max_size=2), max_size=2),
)
comments: st.SearchStrategy[Schema] = st.fixed_dictionaries(
    {},
    optional={
        "description": st.text(max_size=12) | st.just("first\nsecond"),
        "title": st.text(max_size=5),
        "examples": st.lists(st.text(max_size=5) | st.integers(), max_size=2),
        "default": defaults,
        "nullable": st.booleans(),
        "minimum": st.integers(0, 3),
    },
)
plain: st.SearchStrategy[Schema] = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "enum": ["a", 'b"c']},
        {"type": "number"},
        {"type": "integer"},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "array"},
        {"type": "object"},
        {"type": ["integer", "string", "null"]},
        {},
    ]
)


def with_comments(schemas: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.builds(lambda schema, comment: schema | comment, schemas, comments)


def nested(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    names = st.text("abc_é", min_size=1, max_size=3)
    properties = st.dictionaries(names, inner, max_size=4)
    objects = st.builds(
        lambda inner, required: {"type": "object", "properties": inner, "required": required},
        properties,
        st.lists(names, max_size=3),
    )
    arrays = st.builds(lambda inner: {"type": "array", "items": inner}, inner)
    unions = st.builds(lambda inner: {"oneOf": inner}, st.lists(inner, min_size=1, max_size=3))
    return with_comments(objects | arrays | unions)


schemas = st.recursive(with_comments(plain), nested, max_leaves=8)
tools = st.builds(
    FunctionTool,
    name=oracle.names,
    description=st.none() | st.text(max_size=20) | st.sampled_from(["a\r\nb\n", "a\r", "\n\na"]),
    parameters=st.none() | schemas,
)


@given(tools=st.lists(tools, min_size=1, max_size=3))
def test_types_are_the_oracles(tools: list[FunctionTool]) -> None:
    assert all(is_in_subset(tool.parameters or {}) for tool in tools)
    head = Head(tools=tuple(tools))
    shown = vocabulary().decode(render_head(head))
    assert shown == vocabulary().decode(oracle.rendered(head, [])).removesuffix("assistant")
    assert [*render_head(head), 200006, 173781] == oracle.rendered(head, [])


ALIKE = {"description": "one", "oneOf": [{"type": "string", "description": "one", "default": "x"}]}
UNLIKE = {"oneOf": [{"type": "string", "description": "one"}, {"type": "null"}], "description": "2"}
ENUMS = {"type": "string", "enum": ["é", "\n"], "default": "\n"}


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"type": "object", "properties": {"a": ALIKE}}, id="description-said-once"),
        pytest.param({"type": "object", "properties": {"a": UNLIKE}}, id="two-descriptions"),
        pytest.param({"type": "object", "properties": {"a": ENUMS}}, id="default-of-an-enum"),
        pytest.param({"oneOf": [ENUMS, ALIKE]}, id="union-at-the-top"),
        pytest.param({"oneOf": [{"type": "null", "nullable": True}]}, id="nullable-variant"),
        pytest.param({"type": "array", "items": {"oneOf": [{}]}}, id="array-of-a-union"),
    ],
)
def test_rare_shapes_are_the_oracles(parameters: Schema) -> None:
    assert is_in_subset(parameters)
    head = Head(tools=(FunctionTool(name="f", parameters=parameters),))
    assert [*render_head(head), 200006, 173781] == oracle.rendered(head, [])


def deep(levels: int) -> Schema:
    schema: Schema = {}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param({"anyOf": [{"type": "string"}, {"type": "null"}]}, id="anyOf"),
        pytest.param({"$ref": "#/$defs/a"}, id="ref"),
        pytest.param({"const": 1}, id="const"),
        pytest.param({"type": "integer", "enum": [1, 2]}, id="enum-of-numbers"),
        pytest.param({"type": "string", "enum": ["a", None]}, id="enum-with-null"),
        pytest.param({"type": "string", "enum": []}, id="enum-of-nothing"),
        pytest.param({"type": "object", "additionalProperties": {"type": "string"}}, id="map"),
        pytest.param({"type": ["object", "null"]}, id="object-or-null"),
        pytest.param({"type": []}, id="no-type-of-a-list"),
        pytest.param({"type": [["string"]]}, id="list-in-a-list"),
        pytest.param({"type": "date"}, id="unknown-type"),
        pytest.param({"oneOf": []}, id="union-of-nothing"),
        pytest.param({"oneOf": [{}], "enum": ["a"], "type": "string"}, id="union-and-enum"),
        pytest.param({"description": 3}, id="description-not-text"),
        pytest.param({"required": "all", "type": "object"}, id="required-not-a-list"),
        pytest.param({"properties": []}, id="properties-not-an-object"),
        pytest.param(True, id="boolean-schema"),
        pytest.param(deep(40), id="deep"),
    ],
)
def test_what_types_cannot_say_is_shown_as_json(inner: object) -> None:
    tool = FunctionTool(name="f", parameters={"type": "object", "properties": {"b": inner}})
    section = tools_section([tool])
    opening, _, definition = section.partition("## others\n\n")
    assert opening == "# Tools\n\n"
    assert msgspec.json.decode(definition, type=FunctionTool) == tool


def test_other_tools_follow_the_namespace_as_canonical_json() -> None:
    custom = msgspec.Raw(b'{"type": "custom", "name": "apply_patch"}')
    names = msgspec.Raw(b'{ "tools": [{"b":1.0, "a":"\\u00e9"}], "type":"namespace"}')
    section = tools_section([custom, FunctionTool(name="f", description="Do it"), names])
    assert section == (
        "# Tools\n\n## functions\n\nnamespace functions {\n\n// Do it\ntype f = () => any;\n\n"
        "} // namespace functions\n\n## others\n\n"
        '{"name":"apply_patch","type":"custom"}\n'
        '{"tools":[{"a":"é","b":1.0}],"type":"namespace"}'
    )


def test_a_deep_definition_is_no_danger() -> None:
    raw = msgspec.Raw(b'{"type":"x","a":' + b"[" * 300 + b"]" * 300 + b"}")
    assert "[" * 300 in tools_section([raw])
