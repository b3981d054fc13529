"""What every link of a server shares, and how a create is admitted."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from agentloop.admission.admit import admit_history, admit_tools
from agentloop.admission.resolve import Resolver
from agentloop.clock import Clock
from agentloop.core.records import Config
from agentloop.errors import ProtocolError
from agentloop.ids import IdSource
from agentloop.loop.design import Design
from agentloop.loop.live import Live
from agentloop.loop.live_response import Admitted
from agentloop.serve.hosted import TableTools
from agentloop.tokens.render import Head, render_head
from agentloop.wire import codec
from agentloop.wire.items import FunctionTool
from agentloop.wire.requests import AgentLoopOptions, Create

ENGINE_RETRIES_MAX = 100
TOKENS_MAX = 2**31 - 1
SECONDS_MAX = 31_536_000.0  # a year: what a timer is still good for
BACKGROUND_TTL_S = 86_400.0
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

    def admit(self, create: Create, design: Design) -> Admitted:
        """Admit a create: resolve, validate, render. Changes nothing.

        Raises:
            ClientFault: a field, an item, a tool or the model is not right.
        """
        tools = admit_tools(create.tools)
        entries = admit_history(create.input)
        resolved = self._resolver.resolve(create)
        config = self._config(create, design, tools, resolved.seed)
        head = Head(config.instructions, config.tools, config.effort)
        return Admitted(
            config=config,
            head=render_head(head),
            entries=entries,
            design=design,
            engine=resolved.engine,
            behavior=resolved.behavior,
            hosted=self._tools,
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
            agent_name=design.agent_name,
            options=_options(create, design),
            instructions=create.instructions,
            tools=tools,
            raw_tools=tuple(raw.copy() for raw in create.tools),  # not the whole frame with them
            parallel_tool_calls=create.parallel_tool_calls,
            previous_response_id=create.previous_response_id,
            store=create.store is not False,
            is_background=create.background,
            max_output_tokens=_token_limit(create.max_output_tokens, "max_output_tokens"),
            effort=_effort(create),
            tool_choice=Raw(codec.encode(create.tool_choice or "auto")),
            temperature=1.0 if create.temperature is None else create.temperature,
            top_p=1.0 if create.top_p is None else create.top_p,
            metadata=Raw(codec.encode(create.metadata or {})),
            prompt_cache_key=create.prompt_cache_key,
            seed=seed,
        )

    def _hosted(self, tools: tuple[FunctionTool | Raw, ...], design: Design) -> frozenset[str]:
        """The function tools that the server runs. Hosted kinds need no listing."""
        if not design.runs_functions:
            return frozenset()
        return frozenset(self._own(tool.name) for tool in tools if isinstance(tool, FunctionTool))

    def _own(self, name: str) -> str:
        if name not in self._tools:
            raise ProtocolError(
                f"design hosted runs tools of the server's table, which has no {name!r};"
                " start the server with --tools-workspace",
                param="tools",
            )
        return name


def _options(create: Create, design: Design) -> AgentLoopOptions:
    options = create.agent_loop or AgentLoopOptions()
    _in_range(options.detach_ttl_s, "agent_loop.detach_ttl_s")
    _in_range(options.tool_timeout_s or 0.0, "agent_loop.tool_timeout_s")
    _in_range(options.engine_retries, "agent_loop.engine_retries", ENGINE_RETRIES_MAX)
    ttl_s = options.detach_ttl_s or (BACKGROUND_TTL_S if create.background else 0.0)
    final = design.final if design.is_final_fixed else options.final or design.final
    return msgspec.structs.replace(options, final=final, detach_ttl_s=ttl_s)


def _in_range(value: float, param: str, most: float = SECONDS_MAX) -> None:
    if not 0 <= value <= most:
        raise ProtocolError(f"{param} must be from 0 to {most:g}, got {value:g}", param=param)


def _token_limit(value: int | None, param: str) -> int | None:
    if value is not None and not 1 <= value <= TOKENS_MAX:
        raise ProtocolError(f"{param} must be from 1 to {TOKENS_MAX}, got {value}", param=param)
    return value


def _effort(create: Create) -> str:
    effort = (create.reasoning or {}).get("effort") or "medium"
    return effort if effort in _EFFORTS else "medium"
