"""What every link of a server shares, and how a create becomes a plan."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from agentloop.admission.admit import admit_history, admit_tools
from agentloop.admission.resolve import Resolver
from agentloop.clock import Clock
from agentloop.core.context import EMPTY, Context
from agentloop.core.records import Config
from agentloop.core.response import parent_not_found
from agentloop.errors import ProtocolError, UnknownResponse
from agentloop.ids import IdSource
from agentloop.loop.design import Design
from agentloop.loop.live import Live, Plan
from agentloop.serve.hosted import TableTools
from agentloop.tokens.render import Head, render_head
from agentloop.wire import codec
from agentloop.wire.items import FunctionTool
from agentloop.wire.requests import AgentLoopOptions, Create

_EFFORTS = ("low", "medium", "high")


class Service:
    """Live Responses, resolution, ids and the server's own tools."""

    def __init__(
        self, *, live: Live, resolver: Resolver, tools: TableTools, ids: IdSource, clock: Clock
    ) -> None:
        self.live = live
        self.clock = clock
        self._resolver = resolver
        self._tools = tools
        self._ids = ids

    async def close(self) -> None:
        """End every Response, then the engines."""
        await self.live.close()
        await self._resolver.close()

    def plan(self, create: Create, design: Design) -> Plan:
        """Admit a create: resolve, validate, render. Changes nothing.

        Raises:
            ClientFault: a field, an item, a tool, the model or the parent is not right.
        """
        tools = admit_tools(create.tools)
        entries = admit_history(create.input)
        parent = self._parent(create.previous_response_id)
        resolved = self._resolver.resolve(create)
        config = self._config(create, design, tools, resolved.seed)
        head = Head(config.instructions, config.tools, config.effort)
        return Plan(
            config=config,
            head=render_head(head),
            entries=entries,
            design=design,
            engine=resolved.engine,
            behavior=resolved.behavior,
            hosted=self._tools,
            parent=parent,
            event_id=create.event_id,
        )

    def _config(
        self, create: Create, design: Design, tools: tuple[FunctionTool | Raw, ...], seed: int
    ) -> Config:
        return Config(
            id=self._ids.draw("resp"),
            created_at=int(self.clock.timestamp()),
            model=create.model,
            parks=design.parks,
            says_done=design.says_done,
            hosted=self._hosted(tools, design),
            options=_options(create, design),
            instructions=create.instructions,
            tools=tools,
            raw_tools=tuple(create.tools),
            parallel_tool_calls=create.parallel_tool_calls,
            previous_response_id=create.previous_response_id,
            store=create.store is not False,
            is_background=create.background,
            max_output_tokens=_positive(create.max_output_tokens, "max_output_tokens"),
            effort=_effort(create),
            metadata=Raw(codec.encode(create.metadata or {})),
            prompt_cache_key=create.prompt_cache_key,
            seed=seed,
        )

    def _hosted(self, tools: tuple[FunctionTool | Raw, ...], design: Design) -> frozenset[str]:
        """The listed tools that the server runs: its hosted kinds, and functions if it may."""
        names: set[str] = set()
        for tool in tools:
            if isinstance(tool, FunctionTool):
                if design.runs_functions:
                    names.add(self._own(tool.name))
            elif (kind := _kind_of(tool)) in self._tools:
                names.add(kind)
        return frozenset(names)

    def _own(self, name: str) -> str:
        if name not in self._tools:
            raise ProtocolError(
                f"design hosted runs tools of the server's table, which has no {name!r};"
                " start the server with --tools-workspace",
                param="tools",
            )
        return name

    def _parent(self, response_id: str | None) -> Context:
        if response_id is None:
            return EMPTY
        try:
            response = self.live.get(response_id).response
        except UnknownResponse:
            raise parent_not_found(response_id) from None
        if not (response.config.store or response.is_open):
            raise parent_not_found(response_id)
        return response.as_parent()


def _options(create: Create, design: Design) -> AgentLoopOptions:
    options = create.agent_loop or AgentLoopOptions()
    _not_negative(options.detach_ttl_s, "agent_loop.detach_ttl_s")
    _not_negative(options.tool_timeout_s or 0.0, "agent_loop.tool_timeout_s")
    _not_negative(options.engine_retries, "agent_loop.engine_retries")
    return msgspec.structs.replace(options, final=options.final or design.final)


def _not_negative(value: float, param: str) -> None:
    if not 0 <= value < float("inf"):
        raise ProtocolError(f"{param} must be zero or more, got {value}", param=param)


def _positive(value: int | None, param: str) -> int | None:
    if value is not None and value < 1:
        raise ProtocolError(f"{param} must be at least 1, got {value}", param=param)
    return value


def _effort(create: Create) -> str:
    effort = (create.reasoning or {}).get("effort") or "medium"
    return effort if effort in _EFFORTS else "medium"


_kind_decoder = msgspec.json.Decoder(dict[str, object])


def _kind_of(tool: Raw) -> str:
    kind = codec.decode_as(_kind_decoder, tool, "tools").get("type")
    return kind if isinstance(kind, str) else ""
