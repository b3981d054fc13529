"""Engines that break, wherever they do: one terminal, never a success, and nothing left open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from agentloop.core.calls import Call
from agentloop.engine.api import (
    Engine,
    EngineUsage,
    Fault,
    Finish,
    Generation,
    GenRequest,
    Sample,
    Script,
    Sink,
)
from agentloop.errors import EngineFault
from agentloop.tokens.render import SaidCall, SaidReasoning, SaidText
from agentloop.tokens.vocabulary import CALL as CALL_TOKEN
from agentloop.tokens.vocabulary import END, MESSAGE
from tests.conformance.heard import TERMINALS, Event
from tests.loop import loop_kit
from tests.reports.report_kit import (
    PATIENCE_S,
    STAGES,
    Client,
    Site,
    Way,
    breaking,
    check_agreement_everywhere,
    create,
    done_items,
    run,
    saying,
    types_of,
)

on_both_links = pytest.mark.parametrize("stage", STAGES)

# -- B38: an engine that breaks --------------------------------------------------------------------

LONG: Event = {"repeat": {"text": "word ", "tokens": 5_000}}
CALL = SaidCall("shell", '{"cmd":"ls -la"}')
IDS = loop_kit.ids_of(SaidReasoning("Hm, well."), SaidText("Let me look."), CALL, CALL)
PLACES = range(len(IDS) + 1)
SERVER_ERROR = Fault("server_error", is_retryable=False)


async def check_broken(site: Site, client: Client, said: list[Event], code: str) -> None:
    """Exactly one terminal, which says why; whatever was opened is closed or incomplete; the
    server remembers it so, and the link goes on."""
    await check_agreement_everywhere(site, said)
    assert [event for event in said if event["type"] in TERMINALS] == [said[-1]]
    ended = said[-1]["response"]
    assert (said[-1]["type"], ended["status"]) == ("response.failed", "failed")
    assert ended["error"]["code"] == code
    assert ended["error"]["message"]
    assert {item["status"] for item in ended["output"]} <= {"completed", "incomplete"}
    attached, *_ = await site.attached(ended["id"])
    assert (attached["state"], attached["pending_tool_calls"]) == ("failed", [])
    after = await client.ask(create([{"text": "ok"}]), patience_s=PATIENCE_S)
    assert after[-1]["response"]["state"] == "idle"


def open_kind(said: list[Event]) -> str | None:
    """The kind of the item that was open at the end."""
    output = said[-1]["response"]["output"]
    return output[-1]["type"] if output and output[-1]["status"] == "incomplete" else None


def cut_at(place: int) -> Script:
    return Script((Sample(tuple(IDS[:place])),))


class Ending:
    """A sink whose engine ends otherwise than it says."""

    def __init__(self, sink: Sink, end: Callable[[Sink, Finish], None]) -> None:
        self._end = end
        self._sink = sink
        self.on_steps = sink.on_steps

    def on_finish(self, finish: Finish) -> None:
        self._end(self._sink, finish)


def ending(script: Script, end: Callable[[Sink, Finish], None]) -> Way:
    return lambda engine, request, sink: saying(script)(engine, request, Ending(sink, end))


def end_without_reason(sink: Sink, finish: Finish) -> None:
    sink.on_finish(Finish("cancel", finish.usage))  # nobody asked for that


@on_both_links
@pytest.mark.parametrize("way", ["fault", "end without a reason"])
def test_b38_engine_that_dies_anywhere_is_one_failure(way: str, stage: str) -> None:
    ways: list[Way] = []

    async def main(site: Site) -> None:
        client = await site.client()
        kinds = set()
        for place in PLACES:
            if way == "fault":
                ways.append(saying(loop_kit.failing_at(IDS, place, SERVER_ERROR)))
            else:
                ways.append(ending(cut_at(place), end_without_reason))
            said = await client.ask(create([{"text": "ok"}]))
            code = "server_error" if way == "fault" else "engine_closed"
            await check_broken(site, client, said, code)
            kinds.add(open_kind(said))
        assert kinds == {None, "reasoning", "message", "function_call"}

    run(main, stage, breaking(ways))


@on_both_links
def test_b38_clean_end_inside_a_text_closes_it_as_incomplete(stage: str) -> None:
    ways: list[Way] = []

    async def main(site: Site) -> None:
        client = await site.client()
        places = range(IDS.index(MESSAGE) + 1, IDS.index(END))
        for place in places:
            ways.append(saying(cut_at(place)))
            said = await client.play(create([{"text": "ok"}]))
            await check_agreement_everywhere(site, said)
            assert [item["status"] for item in done_items(said)] == ["incomplete"]
        assert len(places) > 2

    run(main, stage, breaking(ways))


@on_both_links
def test_b38_clean_end_inside_arguments_is_no_success(stage: str) -> None:
    ways: list[Way] = []

    async def main(site: Site) -> None:
        client = await site.client()
        start = IDS.index(CALL_TOKEN) + 1
        for place in range(start + IDS[start:].index(MESSAGE) + 1, len(IDS)):
            ways.append(saying(cut_at(place)))
            said = await client.ask(create([{"text": "ok"}]))
            assert said[-1]["type"] in ("response.failed", "response.incomplete")
            await check_agreement_everywhere(site, said)

    run(main, stage, breaking(ways))


def refusing(error: BaseException) -> Way:
    def refuse(engine: Engine, request: GenRequest, sink: Sink) -> Generation:
        raise error

    return refuse


REFUSALS = {
    "fault": (EngineFault("no", code="no_such_lora", is_retryable=False), "no_such_lora"),
    "bug": (RuntimeError("a bug"), "server_error"),
    "cancellation": (asyncio.CancelledError(), "server_error"),
}


@on_both_links
@pytest.mark.parametrize(("error", "code"), REFUSALS.values(), ids=REFUSALS)
def test_b38_engine_that_raises_at_once_is_one_failure(
    error: BaseException, code: str, stage: str
) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        said = await client.ask(create([{"text": "ok"}]))
        assert types_of(said)[2:] == ["response.failed"], "no clean, empty success"
        await check_broken(site, client, said, code)

    run(main, stage, breaking([refusing(error)]))


def end_twice(sink: Sink, finish: Finish) -> None:
    sink.on_finish(finish)
    sink.on_steps(IDS, bytes([len(IDS)]))
    fault = EngineFault("too late", code="too_late", is_retryable=False)
    sink.on_finish(Finish("error", EngineUsage(), error=fault))


@on_both_links
@pytest.mark.parametrize("final", ["hold", "complete"])
def test_b38_what_an_engine_says_after_its_finish_adds_nothing(final: str, stage: str) -> None:
    frame = create([{"text": "ok"}], [{"text": "more"}], agent_loop={"final": final})
    script = loop_kit.script_of(SaidText("ok"))

    def play(way: Way) -> list[Event]:
        heard: list[Event] = []

        async def main(site: Site) -> None:
            heard.extend(await (await site.client()).play(frame))
            await check_agreement_everywhere(site, heard)

        run(main, stage, breaking([way]))
        return heard

    said = play(ending(script, end_twice))
    assert said == play(saying(script))
    assert said[-1]["type"] == "response.completed"


class Stuck:
    """A generation that cannot be cancelled."""

    def cancel(self) -> None:
        raise RuntimeError("a bug after the end")


@on_both_links
def test_b38_exception_after_the_terminal_adds_nothing(stage: str) -> None:
    def stick(engine: Engine, request: GenRequest, sink: Sink) -> Generation:
        engine.submit(request, sink)
        return Stuck()

    async def main(site: Site) -> None:
        client = await site.client()
        said = await client.ask(create([LONG]))
        await site.service.clock.sleep(0.1)
        said += await client.ask({"type": "response.cancel"}, patience_s=PATIENCE_S)
        assert [e["response"]["status"] for e in said if e["type"] in TERMINALS] == ["cancelled"]
        await check_agreement_everywhere(site, said)

    run(main, stage, breaking([stick], step_ms=1.0))


@on_both_links
def test_b38_cancelled_loop_is_not_a_success(stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        said = await client.ask(create([LONG]))
        await site.service.clock.sleep(0.1)
        said += await client.hear()
        site.service.live.get(said[0]["response"]["id"]).cancel()
        said += await client.hear(PATIENCE_S)
        await check_broken(site, client, said, "server_error")
        assert open_kind(said) == "message"

    run(main, stage, breaking([], step_ms=1.0))


def test_b38_cancelled_hosted_tool_is_not_a_success() -> None:
    async def give_up(call: Call) -> str:
        raise asyncio.CancelledError

    async def main(kit: loop_kit.Kit) -> None:
        script = loop_kit.script_of(SaidCall("hosted", "{}"))
        live, ear = kit.start(lambda turn: script, hosted=give_up)
        end = await ear.wait_stop()
        assert (end["type"], end["response"]["error"]["code"]) == (
            "response.failed", "server_error",
        )  # fmt: skip
        await asyncio.sleep(0)
        loop_kit.check_ended(kit, live, ear)

    loop_kit.run(main)
