"""A value that a JSON schema allows, for the arguments of a call.

Filled are the required properties only, arrays with as few elements as allowed. The subset is the
fields of `Schema`; `format` is ignored, and a schema with another keyword is not filled, because
what that asks for could not be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, Struct, field

if TYPE_CHECKING:
    from random import Random

_LEVELS_MAX: Final = 16
_VALUES_MAX: Final = 1_000  # tried for one schema: recursive unions grow exponentially
_LENGTH_MAX: Final = 1_000
_SPREAD: Final = 9  # how far above its lower bound a number may be
_WORDS: Final = ("example", "sample", "value")
_NAMES: Final[dict[type, tuple[str, ...]]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


class CannotFill(ValueError):
    """The schema is outside the subset, or nothing fits it."""


class Annotations(Struct):
    """Keywords that ask for nothing."""

    title: Any = None
    description: Any = None
    default: Any = None
    examples: Any = None
    format: Any = None
    deprecated: Any = None
    nullable: Any = None
    read_only: Any = None
    write_only: Any = None
    dialect: Any = field(default=None, name="$schema")
    identity: Any = field(default=None, name="$id")
    comment: Any = field(default=None, name="$comment")


class Schema(Annotations, forbid_unknown_fields=True, rename="camel"):
    """The subset. Definitions may stand in the root only."""

    type: str | list[str] = []
    const: Any = UNSET
    enum: list[Any] = []
    any_of: list[bool | Schema] = []
    one_of: list[bool | Schema] = []
    ref: str = field(default="", name="$ref")
    properties: dict[str, bool | Schema] = {}
    required: list[str] = []
    additional_properties: bool | Schema = True
    min_properties: int = 0
    max_properties: int = _LENGTH_MAX
    items: bool | Schema = True
    min_items: int = 0
    max_items: int = _LENGTH_MAX
    unique_items: bool = False
    min_length: int = 0
    max_length: int = _LENGTH_MAX
    minimum: int | float | None = None
    maximum: int | float | None = None
    exclusive_minimum: int | float | None = None
    exclusive_maximum: int | float | None = None
    multiple_of: int | None = None
    defs: dict[str, bool | Schema] = field(default_factory=dict, name="$defs")
    definitions: dict[str, bool | Schema] = {}


_UNASKED: Final = Schema()
_ASKING: Final = frozenset(Schema.__struct_fields__) - {
    *Annotations.__struct_fields__, "defs", "definitions"
}  # fmt: skip
_ALONE: Final = frozenset(("const", "enum", "any_of", "one_of", "ref"))


def parse_schema(schema: object) -> Schema:
    """Read a JSON schema.

    Raises:
        CannotFill: it is malformed or outside the subset.
    """
    try:
        return msgspec.convert(schema, Schema)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CannotFill(str(error)) from error


def constraints_of(schema: Schema) -> set[str]:
    """The fields by which the schema asks for something."""
    return {name for name in _ASKING if getattr(schema, name) != getattr(_UNASKED, name)}


def fill(schema: Schema, source: Random) -> object:
    """A value that the schema allows.

    Raises:
        CannotFill: no value was found.
    """
    return _Filler(schema, source).value(schema, _LEVELS_MAX)


class _Filler:
    """Fills one root schema; `levels` is how deep a value may still be."""

    def __init__(self, root: Schema, source: Random) -> None:
        self._root = root
        self._source = source
        self._values_left = _VALUES_MAX

    def value(self, schema: bool | Schema, levels: int) -> object:
        self._values_left -= 1
        if schema is False or levels == 0 or self._values_left < 0:
            raise CannotFill("nothing fits, or nothing small enough")
        if schema is True:
            return self._source.choice(_WORDS)
        asked = constraints_of(schema) - {"type"}
        if not asked & _ALONE:
            return self._typed(schema, levels)
        if len(asked) > 1:
            raise CannotFill(" beside ".join(sorted(asked)))
        if asked & {"const", "enum"}:
            return self._listed(schema)
        if schema.type:
            raise CannotFill("a type beside variants or a reference")
        return self._one_of(self._variants(schema), levels)

    def _variants(self, schema: Schema) -> Sequence[bool | Schema]:
        if schema.ref:
            return [self._referred(schema.ref)]
        if schema.one_of and not _are_apart(schema.one_of):
            raise CannotFill("more than one variant of oneOf may fit")
        return schema.one_of or schema.any_of

    def _referred(self, ref: str) -> bool | Schema:
        if ref == "#":
            return self._root
        place, _, name = ref.rpartition("/")
        known = {"#/$defs": self._root.defs, "#/definitions": self._root.definitions}
        if name not in known.get(place, {}):
            raise CannotFill(f"no definition {ref!r}")
        return known[place][name]

    def _one_of(self, variants: Sequence[bool | Schema], levels: int) -> object:
        for variant in self._source.sample(variants, len(variants)):
            try:
                return self.value(variant, levels - 1)
            except CannotFill:
                continue
        raise CannotFill("no variant can be filled")

    def _listed(self, schema: Schema) -> object:
        types = _types_of(schema)
        listed = schema.enum if schema.const is UNSET else [schema.const]
        fitting = [v for v in listed if not types or set(types) & set(_NAMES[type(v)])]
        if not fitting:
            raise CannotFill("no value of the enum is of the type")
        return self._source.choice(fitting)

    def _typed(self, schema: Schema, levels: int) -> object:
        match _implied_type(schema):
            case "object":
                return self._object(schema, levels)
            case "array":
                return self._array(schema, levels)
            case "string":
                return self._string(schema)
            case "integer":
                return self._integer(schema)
            case "number":
                return self._number(schema)
            case "boolean":
                return self._source.random() < 0.5
            case "null":
                return None
            case unknown:
                raise CannotFill(f"unknown type {unknown!r}")

    def _object(self, schema: Schema, levels: int) -> dict[str, object]:
        names = dict.fromkeys(schema.required)
        if not schema.min_properties <= len(names) <= schema.max_properties:
            raise CannotFill(f"the number of required properties is {len(names)}")
        others = schema.additional_properties
        return {name: self.value(schema.properties.get(name, others), levels - 1) for name in names}

    def _array(self, schema: Schema, levels: int) -> list[object]:
        if schema.min_items > schema.max_items:
            raise CannotFill("minItems is above maxItems")
        elements = [self.value(schema.items, levels - 1) for _ in range(schema.min_items)]
        if schema.unique_items and len({msgspec.json.encode(e) for e in elements}) < len(elements):
            raise CannotFill("the elements are not unique")
        return elements

    def _string(self, schema: Schema) -> str:
        if schema.min_length > min(schema.max_length, _LENGTH_MAX):
            raise CannotFill(f"minLength is {schema.min_length}")
        word = self._source.choice(_WORDS)
        length = max(schema.min_length, min(len(word), schema.max_length))
        return (word * (length // len(word) + 1))[:length]

    def _integer(self, schema: Schema) -> int:
        """An integer near the lower bound, or near zero."""
        step = schema.multiple_of or 1
        if step < 1:
            raise CannotFill(f"multipleOf is {step}")
        low, high = _integer_bounds(schema)
        if low is None:
            low = 0 if high is None else min(0, high - step + 1)
        first = -(-low // step) * step
        last = first + _SPREAD * step if high is None else min(high, first + _SPREAD * step)
        if first > last:
            raise CannotFill("no integer lies within the bounds")
        return self._source.randrange(first, last + 1, step)

    def _number(self, schema: Schema) -> int | float:
        """An integer where one fits, else the middle of the bounds."""
        try:
            return self._integer(schema)
        except CannotFill:
            low, high = _bounds(schema)
            if schema.multiple_of is not None or low is None or high is None:
                raise
        middle = low + (high - low) / 2
        is_above = schema.exclusive_minimum is None or middle > schema.exclusive_minimum
        is_below = schema.exclusive_maximum is None or middle < schema.exclusive_maximum
        if not (low <= middle <= high and is_above and is_below):
            raise CannotFill("no number lies within the bounds")
        return middle


def _types_of(schema: Schema) -> list[str]:
    return [schema.type] if isinstance(schema.type, str) else schema.type


def _implied_type(schema: Schema) -> str:
    """The first type named, `null` last; without one, the type that the other keywords are for."""
    named = sorted(_types_of(schema), key=lambda name: name == "null")
    if named:
        return named[0]
    return "object" if constraints_of(schema) & {"properties", "required"} else "string"


def _are_apart(variants: Sequence[bool | Schema]) -> bool:
    """Whether no value can fit two of the variants, told by their types."""
    types = [_types_of(v) if isinstance(v, Schema) else [] for v in variants]
    names = ["number" if name == "integer" else name for each in types for name in each]
    return all(types) and len(set(names)) == len(names)


def _bounds(schema: Schema) -> tuple[int | float | None, int | float | None]:
    lows = [b for b in (schema.minimum, schema.exclusive_minimum) if b is not None]
    highs = [b for b in (schema.maximum, schema.exclusive_maximum) if b is not None]
    return max(lows, default=None), min(highs, default=None)


def _integer_bounds(schema: Schema) -> tuple[int | None, int | None]:
    """The least and the greatest integer allowed."""
    lows, highs = [], []
    if schema.minimum is not None:
        lows.append(ceil(schema.minimum))
    if schema.exclusive_minimum is not None:
        lows.append(floor(schema.exclusive_minimum) + 1)
    if schema.maximum is not None:
        highs.append(floor(schema.maximum))
    if schema.exclusive_maximum is not None:
        highs.append(ceil(schema.exclusive_maximum) - 1)
    return max(lows, default=None), min(highs, default=None)
