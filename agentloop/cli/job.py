"""What `agentloop run` is to do: a task, tools for it, and how to tell that it was done."""

from __future__ import annotations

import os
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from agentloop.behaviors.replay import (
    Trajectory,
    load_trajectory,
    recorded_outputs,
    to_script,
)
from agentloop.errors import ConfigError
from agentloop.tools.api import Toolbox
from agentloop.tools.apply_patch import ApplyPatch
from agentloop.tools.read_file import ReadFile
from agentloop.tools.recorded import Recorded, RecordedOutput
from agentloop.tools.shell import TIMEOUT_S_MAX, Shell
from agentloop.tools.text import clean
from agentloop.wire import codec
from agentloop.wire.items import FunctionTool
from agentloop.wire.requests import Create, Simulation

if TYPE_CHECKING:
    import argparse

    from agentloop.clock import Clock

BUNDLED_MODEL = "sim-script:fix-slugify"
BUNDLED_CHECK = "python -m unittest -q"
BUNDLED_TASK = (
    "The tests of this project fail. Find the cause, mend the code (not the tests), "
    "and run the tests again with `python -m unittest -q`."
)
INSTRUCTIONS = (
    "You are a coding agent. Your tools work in the user's project. "
    "Look before you change anything, keep changes small, and say at the end what you did."
)
DEFAULT_MODEL = "sim-seeded"
WEB_SEARCH = Raw(b'{"type":"web_search"}')

_OUTPUT_CHARS_MAX = 4_000_000  # a recorded output is said as it was


class Job(Struct, frozen=True, kw_only=True):
    """One session to run.

    Attributes:
        check: a command that must succeed in the workspace afterwards; None where there is none.
        before: the bundled task's files as they were; empty for any other task.
        turns_expected: of a recorded session.
    """

    request: Create
    toolbox: Toolbox
    workspace: Path
    check: str | None = None
    before: dict[str, bytes] = {}
    turns_expected: int | None = None


class CheckReport(Struct):
    """Whether the task was done. `output` is the check's own, or why it was not even run."""

    command: str
    has_passed: bool
    output: str


def prepare(options: argparse.Namespace, scratch: Path, clock: Clock) -> Job:
    """The job that these options ask for; makes its workspace.

    Raises:
        ConfigError: options that do not go together, or a file that is not what it should be.
    """
    _check_options(options)
    if options.trajectory is not None:
        return _replay(options, scratch, clock, load_trajectory(options.trajectory))
    workspace = _workspace(options, scratch)
    before = {} if options.task else _copy_bundled(workspace)
    toolbox = Toolbox([Shell(workspace, clock), ReadFile(workspace), ApplyPatch(workspace)])
    request = _request(
        options.task or BUNDLED_TASK,
        model=options.model or (DEFAULT_MODEL if options.task else BUNDLED_MODEL),
        instructions=INSTRUCTIONS,
        tools=[*_raw(toolbox.definitions()), WEB_SEARCH],
        simulation=_simulation(options),
    )
    check = options.check or (None if options.task else BUNDLED_CHECK)
    return Job(request=request, toolbox=toolbox, workspace=workspace, check=check, before=before)


def _check_options(options: argparse.Namespace) -> None:
    for name, text in (("TASK", options.task), ("--check", options.check)):
        if text is not None and not clean(text).strip():
            raise ConfigError(f"{name} is empty; say what it is, or leave it out")
    if options.trajectory is None:
        if options.paced:
            raise ConfigError("--paced needs --trajectory")
        return
    if options.task:
        raise ConfigError("a trajectory brings its own task; leave out TASK or --trajectory")
    if options.design == "hosted":
        raise ConfigError(
            "a trajectory's tools answer from this side, and in design hosted the server runs"
            " them; use --design ws-append"
        )


def _request(
    task: str,
    *,
    model: str,
    instructions: str,
    tools: list[Raw],
    simulation: Simulation | None,
) -> Create:
    return Create(
        model=clean(model),
        input=Raw(codec.encode(clean(task))),
        instructions=clean(instructions),
        tools=tools,
        simulation=simulation,
    )


def _raw(definitions: list[FunctionTool]) -> list[Raw]:
    return [Raw(codec.encode(definition)) for definition in definitions]


def _simulation(options: argparse.Namespace) -> Simulation | None:
    """What a server elsewhere is asked for; the embedded one is started with it."""
    if options.url is None or (options.profile is None and options.seed is None):
        return None
    return Simulation(profile=options.profile, seed=options.seed)


# -- a recorded session ----------------------------------------------------------------------------


def _replay(
    options: argparse.Namespace, scratch: Path, clock: Clock, trajectory: Trajectory
) -> Job:
    outputs = [RecordedOutput(*output) for output in recorded_outputs(trajectory)]
    recorded = Recorded(outputs, clock, options.paced)
    toolbox = Toolbox(recorded.tools(), output_chars_max=_OUTPUT_CHARS_MAX)
    request = _request(
        trajectory.task,
        model=options.model or f"replay-{trajectory.instance_id}",
        instructions=trajectory.system,
        tools=_raw(toolbox.definitions()),
        simulation=Simulation(
            turns=to_script(trajectory), profile=options.profile, seed=options.seed
        ),
    )
    return Job(
        request=request,
        toolbox=toolbox,
        workspace=_workspace(options, scratch),
        check=options.check,
        turns_expected=len(trajectory.turns),
    )


# -- the workspace ---------------------------------------------------------------------------------


def _workspace(options: argparse.Namespace, scratch: Path) -> Path:
    workspace: Path = options.workspace or scratch / "workspace"
    workspace.mkdir(exist_ok=True)
    return workspace


def _copy_bundled(workspace: Path) -> dict[str, bytes]:
    """Put the bundled task into the workspace; its files as they are now."""
    if any(workspace.iterdir()):
        raise ConfigError(f"{workspace} is not empty; give TASK, or an empty folder")
    with as_file(files("agentloop.agent") / "task") as bundled:
        shutil.copytree(
            bundled, workspace, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
    return _contents(workspace)


def _contents(workspace: Path) -> dict[str, bytes]:
    return {
        os.fspath(path.relative_to(workspace)): path.read_bytes()
        for path in workspace.rglob("*.py")
    }


async def check(job: Job, clock: Clock) -> CheckReport | None:
    """Whether the task was done; None where nothing says how to tell."""
    if job.check is None:
        return None
    if job.before and (problem := _problem_of_changes(job)):
        return CheckReport(job.check, has_passed=False, output=problem)
    arguments = {"cmd": job.check, "timeout_s": float(TIMEOUT_S_MAX)}
    output = await Shell(job.workspace, clock).run(arguments)
    status, _, output = output.partition("\n")
    return CheckReport(job.check, status == "exit code: 0", output)


def _problem_of_changes(job: Job) -> str:
    after = _contents(job.workspace)
    changed = [name for name, content in job.before.items() if after.get(name) != content]
    if not changed:
        return "no file was changed"
    tests = [name for name in changed if Path(name).name.startswith("test_")]
    return f"the tests were changed: {', '.join(tests)}" if tests else ""
