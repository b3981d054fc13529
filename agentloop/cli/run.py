"""`agentloop run`: one agent session from end to end, with real tools."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from rich.console import Console

from agentloop import config
from agentloop.agent.agent import Agent
from agentloop.agent.api import Observer, Outcome, Silent
from agentloop.agent.timeline import with_network
from agentloop.breakdown import Timeline
from agentloop.cli.display import ConsoleObserver
from agentloop.cli.embedded import embedded_server
from agentloop.cli.job import Job, check, prepare
from agentloop.cli.report import RunReport, breakdown_shown, calls_shown, problems_of, show
from agentloop.cli.streams import complain
from agentloop.clock import Clock, WallClock
from agentloop.drive.drives import DRIVES
from agentloop.engine.sim.profiles import PROFILES, profile
from agentloop.errors import AgentLoopError
from agentloop.ids import IdSource
from agentloop.link.fetch import fetch
from agentloop.server.record import Recorder
from agentloop.wire import codec

if TYPE_CHECKING:
    import argparse

    from agentloop.link.api import Tap

DEFAULT_PROFILE = "spark1000"

_RECORD_STOPPED = re.compile(r"recording to .+ stopped: .+")
_timeline_decoder = msgspec.json.Decoder(Timeline)


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "run",
        help="run one agent session and show where its time goes",
        description=f"{__doc__} Without TASK, a small bundled project is mended.",
    )
    add = parser.add_argument
    add("task", nargs="?", metavar="TASK", help="what the agent is to do, in words")
    add("--design", choices=sorted(DRIVES), default="ws-append", help="default %(default)s")
    add("--profile", help=f"engine timing: {', '.join(PROFILES)} (default {DEFAULT_PROFILE})")
    add("--url", type=config.base_url, help="a server that runs already, else one is started")
    add("--model", metavar="NAME", help="the model to ask for")
    add("--workspace", type=config.existing_folder, metavar="DIR",
        help="where the tools work (default: a temporary folder)")  # fmt: skip
    add("--keep", action="store_true", help="keep the temporary folder")
    add("--check", metavar="CMD", help="a command that must succeed in the workspace afterwards")
    add("--trajectory", type=config.existing_file, metavar="FILE",
        help="replay a recorded session (mini-swe-agent .json, SWE-agent .traj)")  # fmt: skip
    add("--paced", action="store_true", help="recorded tools take as long as they did")
    add("--record", type=config.new_file, metavar="FILE", help="write every frame as a JSON line")
    add("--seed", type=config.seed, help="seed of behavior and engine (default 0)")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    parser.set_defaults(command=run)


async def run(options: argparse.Namespace) -> int:
    """Run the session; 0 where it completed and its check passed."""
    logging.getLogger().addHandler(logging.NullHandler())  # tools report to the model
    clock = WallClock()
    if options.url is None:
        profile(options.profile or DEFAULT_PROFILE)  # an unknown name is refused before any work
    with _scratch_folder(is_kept=options.keep) as scratch:
        job = prepare(options, scratch, clock)
        report = await _run_job(options, job, scratch, clock)
        if options.json:
            print(codec.encode(report).decode(), flush=True)
        else:
            show(Console(), report)
    for problem in report.problems:
        complain(problem)
    return 1 if report.problems else 0


async def _run_job(options: argparse.Namespace, job: Job, scratch: Path, clock: Clock) -> RunReport:
    observer: Observer = Silent() if options.json else ConsoleObserver(Console())
    log_path = scratch / "server.log"
    async with AsyncExitStack() as stack:
        url, tap = options.url, None
        if url is None:
            started = embedded_server(_serve_options(options, job), log_path)
            url = await stack.enter_async_context(started)
        elif options.record is not None:
            tap = _mirrored(stack, options.record, clock, log_path)
        drive = await DRIVES[options.design].connect(url, clock=clock, ids=IdSource(), tap=tap)
        outcome = await Agent(drive, job.toolbox, observer, clock).run(job.request)
        timeline = await _fetch_timeline(url, outcome)
    verdict = await check(job, clock)
    turns = len(timeline.turns) if timeline else outcome.turns
    is_workspace_kept = options.keep or options.workspace is not None
    return RunReport(
        status=outcome.status,
        design=options.design,
        model=job.request.model,
        url=options.url,
        response_id=outcome.response_id,
        turns=turns,
        calls=calls_shown(outcome),
        text=outcome.text,
        usage=outcome.usage,
        history_items=outcome.item_count,
        breakdown=breakdown_shown(timeline, _source_of_inference(options)) if timeline else None,
        check=verdict,
        workspace=str(job.workspace) if is_workspace_kept else None,
        record=options.record and str(options.record),
        problems=[
            *problems_of(outcome, turns, job.turns_expected, verdict),
            *_problems_of_record(log_path),
        ],
    )


def _serve_options(options: argparse.Namespace, job: Job) -> list[str]:
    serve = [f"--profile={options.profile or DEFAULT_PROFILE}", f"--seed={options.seed or 0}"]
    if options.record is not None:
        serve.append(f"--record={options.record}")
    if DRIVES[options.design].is_server_run:
        serve.append(f"--tools-workspace={job.workspace}")
    return serve


def _mirrored(stack: AsyncExitStack, path: Path, clock: Clock, log_path: Path) -> Tap:
    """A client's tap that records as the server would: what we send comes in there."""
    handler = logging.FileHandler(log_path)
    logging.getLogger().addHandler(handler)
    stack.callback(handler.close)
    stack.callback(logging.getLogger().removeHandler, handler)
    recorder = Recorder(path, clock)
    stack.callback(_close, recorder)
    write = recorder.tap()

    def tap(direction: Literal["in", "out"], frame: bytes) -> None:
        write("out" if direction == "in" else "in", frame)

    return tap


def _close(recorder: Recorder) -> None:
    with suppress(OSError):  # of a full disk, it has told already
        recorder.close()


def _problems_of_record(log_path: Path) -> list[str]:
    """Where the record is not whole: whoever writes it can only log that."""
    said = log_path.read_text(errors="replace") if log_path.exists() else ""
    return _RECORD_STOPPED.findall(said)


async def _fetch_timeline(url: str, outcome: Outcome) -> Timeline | None:
    """The breakdown of the session; None where the server has none: it may not be ours."""
    try:
        body = await fetch(f"{url}/v1/responses/{outcome.response_id}/timeline")
        timeline = codec.decode_as(_timeline_decoder, body, "timeline")
    except AgentLoopError:
        return None
    return with_network(timeline, outcome.stretches)


def _source_of_inference(options: argparse.Namespace) -> str:
    name = options.profile or (DEFAULT_PROFILE if options.url is None else None)
    if name is None:
        return f"as told by {options.url}; modelled where its engine is simulated"
    return f"modelled (profile {name})"


@contextmanager
def _scratch_folder(*, is_kept: bool) -> Iterator[Path]:
    scratch = Path(tempfile.mkdtemp(prefix="agentloop-")).resolve()
    try:
        yield scratch
    finally:
        if not is_kept:
            shutil.rmtree(scratch, ignore_errors=True)
