"""Every promise of `engine.api`, as functions that take any engine.

A new engine's test calls `check_engine(make_engine)`. Simulated engines say what the script says;
for real ones only the shape of the output is checked.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentloop.engine.api import (
    Engine,
    Finish,
    Generation,
    GenRequest,
    Prefix,
    PrefixLost,
    Sample,
    Script,
)
from agentloop.errors import EngineFault

PROMPT = tuple(range(1, 301))
DELTA = tuple(range(7, 27))
SAID = tuple(range(40, 90))

Check = Callable[[Engine], Awaitable[None]]
REASONS = {"stop", "length", "cancel", "error"}


class Probe:
    """A sink that keeps every promise and notes every broken one."""

    def __init__(self) -> None:
        self.output_tokens = 0
        self.step_count = 0
        self.finish: Finish | None = None
        self.problems: list[str] = []
        self.is_submitted = False
        self.generation: Generation | None = None
        self.cancels_at_step: int | None = None
        self.calls_after_cancel = 0
        self.then: Callable[[], object] = lambda: None
        self._done = asyncio.Event()

    def on_steps(self, ids: list[int], sizes: bytes) -> None:
        self._note(self.is_submitted, "a step came before submit had returned")
        self._note(self.finish is None, "a step came after the finish")
        self._note(type(ids) is list and bool(ids), f"ids are a list, not {ids!r}")
        self._note(0 not in sizes and sum(sizes) == len(ids), "the sizes do not add up to the ids")
        before, self.step_count = self.step_count, self.step_count + len(sizes)
        self.output_tokens += len(ids)
        cancels_at = self.cancels_at_step
        self.calls_after_cancel += cancels_at is not None and before >= cancels_at
        is_reached = cancels_at is not None and before < cancels_at <= self.step_count
        if is_reached and self.generation is not None:
            self.generation.cancel()

    def on_finish(self, finish: Finish) -> None:
        self._note(self.is_submitted, "the finish came before submit had returned")
        self._note(self.finish is None, "there were two finishes")
        self.finish = finish
        self.then()
        self._done.set()

    async def wait(self) -> Finish:
        await self._done.wait()
        await settle()
        assert self.finish is not None
        return self.finish

    def _note(self, is_kept: bool, problem: str) -> None:
        if not is_kept:
            self.problems.append(problem)


async def settle() -> None:
    """Give what should not come the chance to come."""
    for _ in range(5):
        await asyncio.sleep(0)


def make_request(
    name: str,
    ids: tuple[int, ...] = PROMPT,
    *,
    prefix: Prefix | None = None,
    output_max: int = 64,
    output_count: int = 0,
    salt: str = "",
) -> GenRequest:
    return GenRequest(
        id=name,
        prefix=prefix,
        ids=array("I", ids),
        script=Script((Sample(SAID),)),
        max_output_tokens=output_max,
        output_count=output_count,
        salt=salt,
    )


def submit(engine: Engine, request: GenRequest, probe: Probe) -> Probe:
    probe.generation = engine.submit(request, probe)
    probe.is_submitted = True
    return probe


async def run(engine: Engine, request: GenRequest) -> Finish:
    """One generation from submit to finish, with what is promised of all of them."""
    probe = submit(engine, request, Probe())
    finish = await probe.wait()
    check_finish(request, probe, finish)
    return finish


def check_finish(request: GenRequest, probe: Probe, finish: Finish) -> None:
    usage = finish.usage
    before = request.prefix.token_count if request.prefix is not None else 0
    assert probe.problems == []
    assert finish.reason in REASONS
    assert (finish.reason == "error") == (finish.error is not None)
    assert usage.prompt_tokens == before + len(request.ids)
    assert 0 <= usage.cached_tokens < usage.prompt_tokens
    assert usage.output_tokens == probe.output_tokens
    assert usage.output_tokens <= max(0, request.max_output_tokens - request.output_count)
    assert min(usage.discarded_tokens, usage.queue_s, usage.prefill_s, usage.decode_s) >= 0
    if finish.prefix is not None:
        assert finish.prefix.token_count == usage.prompt_tokens + usage.output_tokens


async def check_a_generation_ends(engine: Engine) -> None:
    assert (await run(engine, make_request("whole"))).reason in {"stop", "length"}


async def check_output_is_bounded(engine: Engine) -> None:
    finish = await run(engine, make_request("bounded", output_max=3))
    assert finish.reason in {"stop", "length"}
    assert 1 <= finish.usage.output_tokens <= 3


async def check_earlier_output_counts(engine: Engine) -> None:
    request = make_request("continued", output_max=10, output_count=9)
    assert (await run(engine, request)).usage.output_tokens <= 1


async def check_a_turn_continues(engine: Engine) -> None:
    first = await run(engine, make_request("first"))
    assert first.prefix is not None
    second = await run(engine, make_request("second", DELTA, prefix=first.prefix))
    assert second.prefix is not None
    assert second.prefix.token_count > first.prefix.token_count + len(DELTA)


async def check_a_handle_forks(engine: Engine) -> None:
    first = await run(engine, make_request("first"))
    for name in ("left", "right"):
        await run(engine, make_request(name, DELTA, prefix=first.prefix))


async def check_cancel_at_once(engine: Engine) -> None:
    request = make_request("cancelled")
    probe = submit(engine, request, Probe())
    assert probe.generation is not None
    probe.generation.cancel()
    probe.generation.cancel()
    finish = await probe.wait()
    check_finish(request, probe, finish)
    assert finish.reason == "cancel"
    probe.generation.cancel()
    await settle()
    assert probe.problems == []


async def check_cancel_in_a_step(engine: Engine) -> None:
    request = make_request("cancelled")
    probe = Probe()
    probe.cancels_at_step = 2
    finish = await submit(engine, request, probe).wait()
    check_finish(request, probe, finish)
    assert finish.reason == "cancel"
    assert probe.calls_after_cancel <= 1, "at most the step in flight may still come"


async def check_many_at_once(engine: Engine) -> None:
    requests = [make_request(f"many-{index}", salt=str(index % 3)) for index in range(40)]
    probes = [submit(engine, request, Probe()) for request in requests]
    for request, probe in zip(requests, probes, strict=True):
        check_finish(request, probe, await probe.wait())


async def check_submit_from_a_sink(engine: Engine) -> None:
    first, second = Probe(), Probe()
    first.then = lambda: submit(engine, make_request("second"), second)
    submit(engine, make_request("first"), first)
    assert (await first.wait()).reason in {"stop", "length"}
    assert (await second.wait()).reason in {"stop", "length"}
    assert first.problems == second.problems == []


async def check_tenants_are_apart(engine: Engine) -> None:
    first = await run(engine, make_request("first", salt="one"))
    again = await run(engine, make_request("other", salt="two"))
    assert again.usage.cached_tokens == 0
    with pytest.raises(PrefixLost):
        engine.submit(make_request("thief", DELTA, prefix=first.prefix, salt="two"), Probe())


async def check_an_empty_prompt_is_refused(engine: Engine) -> None:
    with pytest.raises(EngineFault) as fault:
        engine.submit(make_request("empty", ()), Probe())
    assert not fault.value.is_retryable


async def check_close_ends_all(engine: Engine) -> None:
    requests = [make_request(f"open-{index}") for index in range(3)]
    probes = [submit(engine, request, Probe()) for request in requests]
    await engine.close()
    for request, probe in zip(requests, probes, strict=True):
        finish = await probe.wait()
        check_finish(request, probe, finish)
        assert finish.reason == "cancel"
    with pytest.raises(EngineFault):
        engine.submit(make_request("late"), Probe())


CHECKS: tuple[Check, ...] = (
    check_a_generation_ends,
    check_output_is_bounded,
    check_earlier_output_counts,
    check_a_turn_continues,
    check_a_handle_forks,
    check_cancel_at_once,
    check_cancel_in_a_step,
    check_many_at_once,
    check_submit_from_a_sink,
    check_tenants_are_apart,
    check_an_empty_prompt_is_refused,
    check_close_ends_all,
)


async def check_prefix_lost(engine: Engine, lose_prefixes: Callable[[Any], None]) -> None:
    """A lost prefix is an error before anything runs, and the full ids mend it."""
    first = await run(engine, make_request("first"))
    assert first.prefix is not None
    lose_prefixes(engine)
    probe = Probe()
    with pytest.raises(PrefixLost) as lost:
        engine.submit(make_request("lost", DELTA, prefix=first.prefix), probe)
    assert lost.value.is_retryable
    assert 0 <= lost.value.have_tokens < first.prefix.token_count
    await settle()
    assert probe.step_count == 0
    assert probe.finish is None
    whole = PROMPT + SAID[: first.usage.output_tokens] + DELTA
    await run(engine, make_request("again", whole))


async def check_engine(
    make_engine: Callable[[], Engine], *, lose_prefixes: Callable[[Any], None] | None = None
) -> None:
    """Run every check, each on its own engine. `lose_prefixes` makes an engine forget."""
    for check in CHECKS:
        engine = make_engine()
        await check(engine)
        await engine.close()
    if lose_prefixes is not None:
        engine = make_engine()
        await check_prefix_lost(engine, lose_prefixes)
        await engine.close()
