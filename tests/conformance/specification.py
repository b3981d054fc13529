"""Renders the protocol's specification: a template, the transcripts, and the code's own tables.

The template is Markdown with directives, each on a line of its own:

    {{contents}}                   links to the sections
    {{states}}                     the diagram that the transition table draws
    {{fields}}                     fields that many tables share, explained once
    {{message response.append}}    the fields of a client message
    {{event response.done}}        the fields of a server event
    {{item function_call}}         the fields of an item, without those of every item
    {{object PendingCall}}         the fields of what stands within messages, events and items
    {{errors}}                     every code that an error frame may carry
    {{transcript opening}}         a transcript: its comment as prose, then its lines

and, within a line, `{{value WAITING_MAX}}` for a constant of the code. Lines
`name: meaning` directly below a directive explain the rows of its table; a row that nothing
explains is an error, and so is an explanation of nothing.

Pure: texts and modules in, a text out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import getsource
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import FieldInfo, fields

from agentloop.core.states import diagram
from agentloop.errors import AgentLoopError, EngineFault, LinkClosed
from agentloop.wire import events, items, requests
from agentloop.wire.items import Item, TypedItem
from agentloop.wire.requests import ClientMessage

Meanings = dict[str, str]

_DIRECTIVE = re.compile(r"\{\{(\w+) ?(.*?)\}\}")
_MEANING = re.compile(r"(`?)([\w.]+)\1: (.+)")
_PRIMITIVES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    Raw: "any JSON",
    Any: "any JSON",
    tuple[()]: "list",
}


class Row(NamedTuple):
    """One field of a table. `default` is empty where the field is always there."""

    name: str
    type: str
    default: str


class Template(NamedTuple):
    """What a directive is given to work with.

    Attributes:
        transcripts: text by name.
        modules: the server's, with the constants and the errors that reach a client.
        shared: meanings that hold in every table.
        sections: titles, in order.
    """

    transcripts: Mapping[str, str]
    modules: Sequence[ModuleType]
    shared: Meanings
    sections: list[str]


def render(template: str, transcripts: Mapping[str, str], modules: Sequence[ModuleType]) -> str:
    """The specification.

    Raises:
        ValueError: a directive names something that is not there, or something is unexplained.
    """
    lines = template.splitlines()
    shared = next((block(lines, i)[0] for i, line in enumerate(lines) if line == "{{fields}}"), {})
    sections = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    given = Template(transcripts, modules, shared, sections)
    return "\n".join(_rendered(lines, given)) + "\n"


def _rendered(lines: list[str], given: Template) -> Iterator[str]:
    skip_to = 0
    for index, line in enumerate(lines):
        found = _DIRECTIVE.fullmatch(line)
        if index < skip_to:
            continue
        if found is None:
            yield _with_values(line, given.modules)
            continue
        meanings, skip_to = block(lines, index)
        meanings = {name: _with_values(text, given.modules) for name, text in meanings.items()}
        directive = DIRECTIVES.get(found[1])
        if directive is None:
            raise ValueError(f"line {index + 1}: no directive {found[1]!r}")
        if meanings and found[1] in TABLELESS:
            raise ValueError(f"line {index + 2}: this explains no table")
        yield directive(found[2], meanings, given)


def block(lines: list[str], index: int) -> tuple[Meanings, int]:
    """The explanations below the directive at `index`, and the line after them.

    A line that is indented goes on with the one before it.
    """
    meanings: Meanings = {}
    name = ""
    while (index := index + 1) < len(lines):
        if name and lines[index].startswith("  "):
            meanings[name] += " " + lines[index].strip()
        elif found := _MEANING.fullmatch(lines[index]):
            name = found[2]
            meanings[name] = found[3]
        else:
            break
    return meanings, index


def _with_values(line: str, modules: Sequence[ModuleType]) -> str:
    return _DIRECTIVE.sub(lambda found: _value(found[1], found[2], modules), line)


def _value(directive: str, path: str, modules: Sequence[ModuleType]) -> str:
    if directive != "value":
        raise ValueError(f"{{{{{directive} {path}}}}} stands on a line of its own")
    name, _, attribute = path.partition(".")
    value = _constant(name, modules)
    value = getattr(value, attribute) if attribute else value
    if "BYTES" in path.upper():
        return size_of(value)
    return value if isinstance(value, str) else f"{value:,.10g}"


def size_of(byte_count: int) -> str:
    """In the largest unit of which there is one."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if byte_count >= size:
            return f"{byte_count / size:g} {unit}"
    return f"{byte_count / 1024:g} KiB"


def _constant(name: str, modules: Sequence[ModuleType]) -> Any:
    """The constant of this name, in whichever module it stands; others may import it."""
    found = [vars(module)[name] for module in modules if name in vars(module)]
    if not found or any(value != found[0] for value in found):
        raise ValueError(f"there is no one constant {name!r}")
    return found[0]


# -- tables ----------------------------------------------------------------------------------------


def _states(_: str, meanings: Meanings, given: Template) -> str:
    return f"```mermaid\n{diagram()}```"


def _contents(_: str, meanings: Meanings, given: Template) -> str:
    titled = ((title, anchor(title)) for title in given.sections)
    return "\n".join(f"{i}. [{title}](#{to})" for i, (title, to) in enumerate(titled, start=1))


def _fields(_: str, meanings: Meanings, given: Template) -> str:
    rows = [f"| `{name}` | {cell(meaning)} |" for name, meaning in meanings.items()]
    return "\n".join(["| field | meaning |", "| --- | --- |", *rows])


def _message(tag: str, meanings: Meanings, given: Template) -> str:
    return _struct_section(f"`{tag}`", _named(tag, messages()), meanings, given)


def _event(tag: str, meanings: Meanings, given: Template) -> str:
    return _struct_section(f"`{tag}`", _named(tag, server_events()), meanings, given)


def _item(tag: str, meanings: Meanings, given: Template) -> str:
    return _struct_section(f"`{tag}`", _named(tag, typed_items()), meanings, given)


def _object(name: str, meanings: Meanings, given: Template) -> str:
    return _struct_section(name, _named(name, objects()), meanings, given)


def _named(name: str, known: Mapping[str, type[Struct]]) -> type[Struct]:
    if name not in known:
        raise ValueError(f"there is no {name!r}; there are {', '.join(sorted(known))}")
    return known[name]


def messages() -> dict[str, type[Struct]]:
    """Every client message, by its type."""
    return {_tag(struct): struct for struct in get_args(ClientMessage)}


def server_events() -> dict[str, type[Struct]]:
    """Every server event, by its type."""
    found = {_tag(event): event for event in subclasses(events.Event)}
    return {tag: event for tag, event in found.items() if tag != event.__name__}  # but for bases


def typed_items() -> dict[str, type[Struct]]:
    """Every item, by its type."""
    return {_tag(item): item for item in get_args(TypedItem)}


def objects() -> dict[str, type[Struct]]:
    """Every Struct of the wire, by its class's name."""
    found = (value for module in (requests, events, items) for value in vars(module).values())
    return {s.__name__: s for s in found if isinstance(s, type) and issubclass(s, Struct)}


def _tag(struct: type[Struct]) -> str:
    tag = struct.__struct_config__.tag
    return tag if isinstance(tag, str) else ""


def subclasses(parent: type[Any]) -> Iterator[type[Any]]:
    """The classes below this one that agentloop defines; what tests derive says nothing."""
    for child in parent.__subclasses__():
        if child.__module__.startswith("agentloop."):
            yield child
            yield from subclasses(child)


def _struct_section(title: str, struct: type[Struct], meanings: Meanings, given: Template) -> str:
    said, documented = docstring(struct)
    known = {**given.shared, **documented, **meanings}
    inherited = Item.__struct_fields__ if struct in get_args(TypedItem) else ()
    rows = [row_of(field) for field in fields(struct) if field.name not in inherited]
    _check_meanings(title, {row.name for row in rows}, known, meanings)
    lines = [f"#### {title}", ""]
    if said:
        lines += [said, ""]
    if not rows:
        return "\n".join(lines).strip()
    has_defaults = any(row.default for row in rows)
    lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{r.name}` | {r.type} | {r.default} | {cell(known[r.name])} |" for r in rows]
    if not has_defaults:
        lines = [re.sub(r"^((?:\|[^|]*){2})\|[^|]*", r"\1", line) for line in lines]
    return "\n".join(lines)


def cell(text: str) -> str:
    """A text within a table."""
    return text.replace("|", "\\|")


def _check_meanings(title: str, names: set[str], known: Meanings, meanings: Meanings) -> None:
    if missing := sorted(names - known.keys()):
        raise ValueError(f"{title}: nothing explains {', '.join(missing)}")
    if idle := sorted(meanings.keys() - names):
        raise ValueError(f"{title}: there is no {', '.join(idle)} to explain")


def docstring(struct: type[Any]) -> tuple[str, Meanings]:
    """What a class says of itself on one line, and of its attributes."""
    text, _, attributes = (struct.__dict__.get("__doc__") or "").partition("Attributes:")
    said = re.sub(r"^`[\w.]+`: (.)", lambda found: found[1].upper(), " ".join(text.split()))
    meanings, name = {}, ""
    for line in attributes.strip().splitlines():
        if found := _MEANING.fullmatch(line.strip()):
            name = found[2]
            meanings[name] = found[3]
        elif name and line.strip():
            meanings[name] += " " + line.strip()
    return said, meanings


def row_of(field: FieldInfo) -> Row:
    """A field as the wire knows it."""
    return Row(field.encode_name, type_name(field.type), _default(field))


def _default(field: FieldInfo) -> str:
    if field.required:
        return ""
    made = field.default_factory is not msgspec.NODEFAULT
    default = field.default_factory() if made else field.default
    return "absent" if default is UNSET else f"`{msgspec.json.encode(default).decode()}`"


def type_name(hint: Any) -> str:
    """A type in the words of JSON."""
    if hint in _PRIMITIVES:
        return _PRIMITIVES[hint]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return f"[{hint.__name__}](#{anchor(hint.__name__)})"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(f'`"{argument}"`' for argument in arguments)
    if origin is list:
        return f"list of {type_name(arguments[0])}"
    if origin is Annotated:
        return type_name(arguments[0])
    if origin in (Union, UnionType):
        return _union_name(arguments)
    if origin is dict:
        return "object"
    raise ValueError(f"no word for the type {hint}")


def _union_name(arguments: tuple[Any, ...]) -> str:
    if set(get_args(TypedItem)) <= set(arguments):
        return "[item](#items)"
    names = [type_name(argument) for argument in arguments if argument is not UnsetType]
    return " or ".join(sorted(names, key=lambda name: name == "null"))


def anchor(title: str) -> str:
    """The address that a heading gets."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


# -- errors ----------------------------------------------------------------------------------------

NOT_TOLD = (EngineFault, LinkClosed)  # the first ends a Response instead, the second has no reader


def _errors(_: str, meanings: Meanings, given: Template) -> str:
    codes = error_codes((getsource(module), vars(module)) for module in given.modules)
    _check_meanings("errors", set(codes), meanings, meanings)
    lines = ["| code | status | kind of fault | when |", "| --- | --- | --- | --- |"]
    for code in meanings:
        fault = codes[code]
        kind, when = docstring(fault)[0], cell(meanings[code])
        lines.append(f"| `{code}` | {fault.status} | {kind} | {when} |")
    return "\n".join(lines)


def error_codes(
    sources: Iterable[tuple[str, Mapping[str, Any]]],
) -> dict[str, type[AgentLoopError]]:
    """Every code that these modules raise, and the class that carries it.

    Args:
        sources: each module's text, and what the names in it stand for.
    """
    codes: dict[str, type[AgentLoopError]] = {}
    for source, names in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                fault = names.get(node.func.id)
                if is_told(fault):
                    codes[_code_of(node, fault)] = fault
    return codes


def is_told(value: Any) -> TypeGuard[type[AgentLoopError]]:
    """Whether this is a class of errors that an error frame tells of."""
    is_error = isinstance(value, type) and issubclass(value, AgentLoopError)
    return is_error and not issubclass(value, NOT_TOLD)


def _code_of(call: ast.Call, fault: type[AgentLoopError]) -> str:
    given = (word.value for word in call.keywords if word.arg == "code")
    return next((str(v.value) for v in given if isinstance(v, ast.Constant)), fault.code)


# -- transcripts -----------------------------------------------------------------------------------


def _transcript(name: str, meanings: Meanings, given: Template) -> str:
    if name not in given.transcripts:
        raise ValueError(f"there is no transcript {name!r}")
    lines = given.transcripts[name].splitlines()
    length = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    prose = " ".join(line.removeprefix("#").strip() for line in lines[:length])
    shown = "\n".join(lines[length:]).strip()
    return f"**`{name}`** {prose}\n\n```text\n{shown}\n```"


DIRECTIVES: dict[str, Callable[[str, Meanings, Template], str]] = {
    "contents": _contents,
    "states": _states,
    "fields": _fields,
    "message": _message,
    "event": _event,
    "item": _item,
    "object": _object,
    "errors": _errors,
    "transcript": _transcript,
}
TABLELESS = ("contents", "states", "transcript")
