"""The tool interface, and the one boundary at which a tool meets a model.

A tool takes decoded arguments and answers with text, or raises `ToolFailed` with a message for the
model. `Toolbox.call` is the boundary: whatever the model wrote and whatever the tool did becomes an
output text, clean and bounded. Only `CancelledError` passes, after the tool has stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Literal, Protocol, Self

import msgspec
from msgspec import Struct

from agentloop.errors import ConfigError, ToolFailed
from agentloop.tools.text import bounded, clean
from agentloop.wire.items import FunctionTool

# What may be done with a call whose result was lost: run it again (`pure`, `idempotent`), ask the
# tool whether it happened (`probe`), or tell the model that nobody knows (`once`).
Durability = Literal["pure", "idempotent", "probe", "once"]

_decoder = msgspec.json.Decoder(dict[str, object])
_log = logging.getLogger(__name__)


class Tool(Protocol):
    """Something that a model may call."""

    @property
    def name(self) -> str: ...

    @property
    def definition(self) -> FunctionTool: ...

    @property
    def kind(self) -> Durability: ...

    async def run(self, arguments: dict[str, object]) -> str:
        """Do the work. When this returns or raises, nothing of it goes on.

        Raises:
            ToolFailed: with a message for the model that names the fix.
        """


class Arguments(Struct, forbid_unknown_fields=True, frozen=True):
    """Base of a tool's arguments: the fields are the tool's parameters."""

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The JSON schema of the fields."""
        _, components = msgspec.json.schema_components((cls,))
        shown = {"type", "properties", "required"}
        schema = {k: v for k, v in components[cls.__name__].items() if k in shown}
        return schema | {"additionalProperties": False}

    @classmethod
    def read(cls, arguments: dict[str, object]) -> Self:
        """Check the arguments.

        Raises:
            ToolFailed: they do not fit; the message names the field and what is expected.
        """
        try:
            return msgspec.convert(arguments, cls)
        except msgspec.ValidationError as error:
            raise ToolFailed(
                f"the arguments do not fit: {error}; send {usage(cls.schema())}"
            ) from error


def define(name: str, description: str, arguments: type[Arguments]) -> FunctionTool:
    """A function tool's definition. Not strict: strict schemas have no optional fields."""
    return FunctionTool(
        name=name, description=description, parameters=arguments.schema(), strict=False
    )


def usage(parameters: dict[str, Any] | None) -> str:
    """A JSON schema of an object in one line: `{cmd: string, timeout_s?: number}`."""
    schema = parameters or {}
    required = schema.get("required", ())
    fields = (
        f"{name}{'' if name in required else '?'}: {field.get('type', 'any')}"
        for name, field in schema.get("properties", {}).items()
    )
    return f"{{{', '.join(fields)}}}"


class Toolbox:
    """Tools by name.

    Args:
        tools: the tools, with names that differ.
        output_chars_max: an output keeps this many characters, from its head and its tail.
        timeout_s: the limit of any one call; tools may have tighter ones.

    Raises:
        ConfigError: two tools have the same name.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        output_chars_max: int = 40_000,
        timeout_s: float = 3_600.0,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(f"two tools are named {tool.name}; rename one of them")
            self._tools[tool.name] = tool
        self._output_chars_max = output_chars_max
        self._timeout_s = timeout_s

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def definitions(self) -> list[FunctionTool]:
        """What a request lists as its tools."""
        return [tool.definition for tool in self._tools.values()]

    def kind_of(self, name: str) -> Durability:
        """A tool's durability class; a call of an unknown name has no effect, so it is `pure`."""
        return self._tools[name].kind if name in self._tools else "pure"

    async def call(self, name: str, arguments: str) -> str:
        """Run one call, `arguments` being JSON text as the model wrote it. Never raises, except
        `CancelledError`."""
        try:
            output = await self._run(name, arguments)
        except ToolFailed as error:
            output = f"error: {error.message}"
        except Exception as error:
            _log.exception("tool %r raised", name)
            output = f"error: {name} broke: {type(error).__name__}: {error}"
        return bounded(clean(output), self._output_chars_max)

    async def _run(self, name: str, arguments: str) -> str:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolFailed(f"there is no tool {name!r}; there are: {', '.join(self._tools)}")
        values = _decode(arguments, tool.definition)
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return await tool.run(values)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            message = f"{name} did not end within {self._timeout_s:g} s and was stopped"
            raise ToolFailed(message) from error


def _decode(arguments: str, definition: FunctionTool) -> dict[str, object]:
    try:
        return _decoder.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ToolFailed(
            f"the arguments of {definition.name} are not one JSON object: {error}; "
            f"send {usage(definition.parameters)}"
        ) from error
