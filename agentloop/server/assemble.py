"""Puts a server's parts together, without a socket: what tests and the memory link use too."""

from __future__ import annotations

from agentloop.admission.admit import admit_result
from agentloop.admission.resolve import Resolver
from agentloop.behaviors.attempts import Attempts
from agentloop.behaviors.catalog import Catalog
from agentloop.clock import Clock
from agentloop.engine.sim.profiles import profile
from agentloop.engine.sim.replica import SimEngine
from agentloop.ids import IdSource
from agentloop.journal.api import Journal
from agentloop.loop.live import Live
from agentloop.loop.live_response import Shared
from agentloop.serve.hosted import TableTools
from agentloop.serve.service import Service
from agentloop.server.options import ServerOptions
from agentloop.tools.api import Toolbox
from agentloop.tools.standard import standard_toolbox
from agentloop.tools.web_search import WebSearch


def assemble(
    options: ServerOptions, clock: Clock, journal: Journal, toolbox: Toolbox | None = None
) -> Service:
    """The service of these options.

    Args:
        toolbox: the table of tools that the server runs; None makes it from the options.

    Raises:
        ConfigError: an unknown profile, a script folder that is not there.
    """
    shared = Shared(
        clock=clock,
        journal=journal,
        attempts=Attempts(),
        admit_result=admit_result,
        keepalive_s=options.keepalive_s,
    )
    resolver = Resolver(
        Catalog(
            options.script_dirs,
            is_strict=options.is_strict,
            drives_tools=options.drives_tools,
        ),
        lambda name: SimEngine(profile(name), clock),
        profile=options.profile,
        seed=options.seed,
    )
    return Service(
        live=Live(shared),
        resolver=resolver,
        tools=TableTools(toolbox or _toolbox(options, clock)),
        ids=IdSource(options.seed if options.is_reproducible else None),
        clock=clock,
    )


def _toolbox(options: ServerOptions, clock: Clock) -> Toolbox:
    if options.tools_workspace is None:
        return Toolbox([WebSearch(is_threaded=not clock.is_virtual)])
    return standard_toolbox(options.tools_workspace, clock)
