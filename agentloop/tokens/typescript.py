"""Tool definitions as a model reads them: TypeScript where that can say them, else JSON.

The subset of JSON Schema shown as TypeScript, as openai-harmony shows it:

- `type`: `object` (`properties`, `required`), `array` (`items`), `string` (`enum` of strings),
  `number`, `integer`, `boolean`, `null` (shown as `any`), absent (`any`), or a list of names;
- `oneOf`, `nullable`;
- as comments: `description`, `title`, `examples`, `default`;
- constraints that TypeScript cannot say are left out: bounds, lengths, `pattern`, `format`,
  `additionalProperties` as a boolean, and the like (`_SILENT`).

A schema with anything else (`anyOf`, `$ref`, `const`, an enum of numbers, more than 32 levels, ...)
would lose its meaning, so its tool is shown like `namespace`, `custom` and unknown tools: as
canonical JSON (keys sorted, no spaces), one definition a line, in a section `## others` after the
namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agentloop.errors import ProtocolError
from agentloop.wire.items import FunctionTool

Tool = FunctionTool | msgspec.Raw
Schema = dict[str, Any]

_TYPES: Final = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_SHOWN: Final = frozenset((
    "type", "properties", "required", "items", "enum", "oneOf", "nullable",
    "description", "title", "examples", "default",
))  # fmt: skip
_SILENT: Final = frozenset((
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems", "minProperties",
    "maxProperties", "additionalProperties", "$schema", "deprecated", "readOnly", "writeOnly",
))  # fmt: skip
_HIDDEN_BY_ONE_OF: Final = frozenset(("properties", "items", "enum"))
_LEVELS_MAX: Final = 32


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values have equal texts.

    Raises:
        ProtocolError: the value is nested too deeply.
    """
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except RecursionError:
        raise ProtocolError("a JSON value is nested too deeply") from None


def canonical_text(raw: msgspec.Raw | str) -> str:
    """The canonical JSON of a JSON text.

    Raises:
        ProtocolError: it is not JSON after all, or nested too deeply.
    """
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"not valid JSON: {error}") from None
    return canonical_json(value)


def _json_text(value: object) -> str:
    """JSON without spaces, keys in the order given."""
    return msgspec.json.encode(value).decode()


def tools_section(tools: Sequence[Tool]) -> str:
    """The `# Tools` section of the developer message; `tools` is not empty.

    Raises:
        ProtocolError: a definition is not valid JSON, or nested too deeply.
    """
    functions: list[str] = []
    others: list[str] = []
    for tool in tools:
        if isinstance(tool, FunctionTool) and is_in_subset(tool.parameters or {}):
            functions += _type_lines(tool)
        else:
            others.append(_definition(tool))
    sections = ["# Tools"]
    if functions:
        opening = ("## functions\n", "namespace functions {\n")
        sections.append("\n".join((*opening, *functions, "} // namespace functions")))
    if others:
        sections.append("\n".join(("## others\n", *others)))
    return "\n\n".join(sections)


def _definition(tool: Tool) -> str:
    return canonical_text(tool) if isinstance(tool, msgspec.Raw) else canonical_json(tool)


def _type_lines(tool: FunctionTool) -> list[str]:
    parameters = "" if tool.parameters is None else f"_: {type_of(tool.parameters)}"
    comments = [f"// {line}" for line in _lines(tool.description or "")]
    return [*comments, f"type {tool.name} = ({parameters}) => any;\n"]


def _lines(text: str) -> list[str]:
    """Lines end at `\\n` or `\\r\\n` only; the last may lack its end."""
    *ended, rest = text.split("\n")
    return [line.removesuffix("\r") for line in ended] + ([rest] if rest else [])


def is_in_subset(schema: object, levels: int = _LEVELS_MAX) -> bool:
    """Whether TypeScript says what this schema means."""
    if not isinstance(schema, dict) or levels == 0 or not schema.keys() <= _SHOWN | _SILENT:
        return False
    if not (_has_plain_values(schema) and _has_plain_type(schema) and _has_plain_union(schema)):
        return False
    inner = [*schema.get("oneOf", ()), *schema.get("properties", {}).values()]
    if "items" in schema:
        inner.append(schema["items"])
    return all(is_in_subset(each, levels - 1) for each in inner)


def _has_plain_values(schema: Schema) -> bool:
    required = schema.get("required", [])
    return (
        isinstance(schema.get("description", ""), str)
        and isinstance(schema.get("title", ""), str)
        and isinstance(schema.get("nullable", False), bool)
        and isinstance(schema.get("additionalProperties", False), bool)
        and isinstance(schema.get("examples", []), list)
        and isinstance(schema.get("properties", {}), dict)
        and isinstance(required, list)
        and all(isinstance(name, str) for name in required)
    )


def _has_plain_type(schema: Schema) -> bool:
    kind = schema.get("type")
    if "enum" in schema:
        values = schema["enum"]
        return (
            kind == "string"
            and isinstance(values, list)
            and bool(values)
            and all(isinstance(value, str) for value in values)
        )
    if isinstance(kind, list):
        names = {name for name in kind if isinstance(name, str)}
        return len(names) == len(kind) > 0 and names <= _TYPES - {"object", "array"}
    return kind is None or (isinstance(kind, str) and kind in _TYPES)


def _has_plain_union(schema: Schema) -> bool:
    """A union is shown by its variants alone."""
    if "oneOf" not in schema:
        return True
    variants = schema["oneOf"]
    return isinstance(variants, list) and bool(variants) and not schema.keys() & _HIDDEN_BY_ONE_OF


def type_of(schema: Schema, indent: str = "") -> str:
    """The TypeScript type of a schema of the subset."""
    if "oneOf" in schema:
        return "".join(
            f"\n{indent} | {_nullable_type(variant, indent + '   ')}{_variant_comment(variant)}"
            for variant in schema["oneOf"]
        )
    match schema.get("type"):
        case list(names):
            return " | ".join("number" if name == "integer" else name for name in names)
        case "object":
            return _object_type(schema, indent)
        case "array":
            return f"{type_of(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
        case "string":
            return " | ".join(f'"{value}"' for value in schema.get("enum", ())) or "string"
        case "number" | "integer":
            return "number"
        case "boolean":
            return "boolean"
        case _:
            return "any"


def _nullable_type(schema: Schema, indent: str) -> str:
    shown = type_of(schema, indent)
    return f"{shown} | null" if schema.get("nullable") and "null" not in shown else shown


def _variant_comment(variant: Schema) -> str:
    comments = [variant["description"]] if "description" in variant else []
    if "default" in variant:
        is_quoted = "enum" in variant  # here, unlike in a property, a member keeps its quotes
        shown = _json_text(variant["default"]) if is_quoted else _shown_default(variant)
        comments.append(f"default: {shown}")
    return f" // {' '.join(comments)}" if comments else ""


def _shown_default(schema: Schema) -> str:
    default = schema["default"]
    if not isinstance(default, str):
        return _json_text(default)
    return default if "enum" in schema else f'"{default}"'


def _object_type(schema: Schema, indent: str) -> str:
    comment = f"{indent}// {schema['description']}\n" if "description" in schema else ""
    required = schema.get("required", ())
    properties = (
        _property(name if name in required else f"{name}?", inner, indent)
        for name, inner in schema.get("properties", {}).items()
    )
    return f"{comment}{{\n{''.join(properties)}{indent}}}"


def _property(name: str, schema: Schema, indent: str) -> str:
    write = _union_lines if "oneOf" in schema else _property_lines
    lines = [f"// {schema['title']}", "//"] if "title" in schema else []
    return "".join(f"{indent}{line}\n" for line in [*lines, *write(name, schema, indent)])


def _example_lines(schema: Schema) -> list[str]:
    examples = schema.get("examples")
    if not examples:
        return []
    return ["// Examples:", *(f'// - "{text}"' for text in examples if isinstance(text, str))]


def _property_lines(name: str, schema: Schema, indent: str) -> list[str]:
    comment = [f"// {schema['description']}"] if "description" in schema else []
    default = f" // default: {_shown_default(schema)}" if "default" in schema else ""
    shown = f"{name}: {_nullable_type(schema, indent + '    ')},{default}"
    return [*comment, *_example_lines(schema), shown]


def _union_lines(name: str, schema: Schema, indent: str) -> list[str]:
    """A property of several variants, each on its own line; a description is said once."""
    variants = schema["oneOf"]
    description = schema.get("description")
    is_above = description is not None and variants[0].get("description") != description
    lines = _example_lines(schema)
    if is_above:
        lines.append(f"// {description}")
    if "default" in schema:
        lines.append(f"// default: {_shown_default(schema)}")
    lines.append(f"{name}:")
    for index, variant in enumerate(variants):
        comments = []
        said = variant.get("description")
        if said is not None and said != description and not (index == 0 and is_above):
            comments.append(said)
        if "default" in variant:
            comments.append(f"default: {_shown_default(variant)}")
        comment = f" // {' '.join(comments)}" if comments else ""
        lines.append(f" | {_nullable_type(variant, indent + '   ')}{comment}")
    return [*lines, ","]
