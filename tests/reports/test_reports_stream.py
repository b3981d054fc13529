"""Streams that broke strict clients: fields, indices, snapshots and step sizes."""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from agentloop.engine.api import (
    GenRequest,
)
from tests.conformance.heard import NO_USAGE, TERMINALS, Event
from tests.reports.event_shapes import check_event
from tests.reports.report_kit import (
    GOLDEN,
    PATIENCE_S,
    SHELL,
    STAGES,
    Site,
    check_agreement,
    check_agreement_everywhere,
    create,
    deltas_of,
    done_items,
    in_steps,
    noting,
    of_type,
    output,
    reported_items,
    run,
    types_of,
    user,
)

on_both_links = pytest.mark.parametrize("stage", STAGES)
in_golden_runs = pytest.mark.parametrize("frame", GOLDEN.values(), ids=GOLDEN)

# -- B35: what a strict client demands -------------------------------------------------------------


@on_both_links
@in_golden_runs
def test_b35_every_event_has_its_fields_and_its_number(frame: Event, stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        said = await client.play(frame)
        for number, event in enumerate(said):
            check_event(event)
            assert event["sequence_number"] == number, "+1 per event, across every suspension"
            assert "stream_id" not in event
        created, in_progress, *_ = said
        assert types_of(said[:2]) == ["response.created", "response.in_progress"]
        assert created["response"] == in_progress["response"]
        shown = [event["response"] for event in (created, in_progress, said[-1])]
        assert {response["model"] for response in shown} == {"sim"}
        assert {response["created_at"] for response in shown} == {shown[0]["created_at"]}
        assert created["response"]["created_at"] > 1_700_000_000
        assert said[-1]["type"] in TERMINALS
        assert await client.hear(PATIENCE_S) == [], "nothing follows the terminal"

    run(main, stage)


LIFE = {
    "message": "item< part< (output_text~ )*output_text> part> item>",
    "reasoning": "item< part< (reasoning_text~ )*reasoning_text> part> item>",
    "function_call": "item< (function_call_arguments~ )*function_call_arguments> item>",
    "custom_tool_call": "item< (custom_tool_call_input~ )*custom_tool_call_input> item>",
    "web_search_call": "item< item>",
}
CUT_LIFE = "item<( function_call_arguments~)*"


def life_of(item_id: str, said: list[Event]) -> str:
    """The events of one item, in short."""
    own = [e for e in said if item_id in (e.get("item_id"), e.get("item", {}).get("id"))]
    text = " ".join(types_of(own)).replace("output_item", "item").replace("content_part", "part")
    text = text.replace(".added", "<").replace(".delta", "~").replace(".done", ">")
    return text.replace("response.", "")


@on_both_links
@in_golden_runs
def test_b35_whatever_is_opened_is_closed_in_order(frame: Event, stage: str) -> None:
    async def main(site: Site) -> None:
        said = await (await site.client()).play(frame)
        done = {item["id"] for item in done_items(said)}
        cut = []
        for event in of_type(said, "response.output_item.added"):
            item = event["item"]
            assert item["status"] == "in_progress"
            assert not [item[key] for key in ("content", "arguments", "input") if item.get(key)]
            life = LIFE[item["type"]] if item["id"] in done else CUT_LIFE
            assert re.fullmatch(life, life_of(item["id"], said)), life_of(item["id"], said)
            cut += [item["id"]] * (item["id"] not in done)
        last = reported_items(said)[-1]
        assert cut == ([last["id"]] if frame is GOLDEN["incomplete call"] else [])
        assert last["status"] == ("incomplete" if frame.get("max_output_tokens") else "completed")

    run(main, stage)


# -- B36: one index per item -----------------------------------------------------------------------

CALL_B: Event = {"call": {"name": "shell", "arguments": {"cmd": "git status --short", "b": 1}}}
MANY: list[Event] = [{"reasoning": "Let me think of both."}, SHELL, CALL_B, {"text": "Both made."}]


def check_indices(said: list[Event]) -> None:
    """One index per item, the same in all its events; no item begins within another."""
    index_of: dict[str, set[int]] = {}
    for event in said:
        if "output_index" in event:
            item_id = event.get("item_id") or event["item"]["id"]
            index_of.setdefault(item_id, set()).add(event["output_index"])
    assert [*index_of.values()] == [{index} for index in range(len(index_of))]
    told = [e["output_index"] for e in said if "output_index" in e]
    assert told == sorted(told), "items do not overlap"
    assert [item["id"] for item in reported_items(said)] == [*index_of], "sorted by index"


@on_both_links
@pytest.mark.parametrize("size", [1, 3, 255])
def test_b36_each_item_has_one_index_and_its_own_deltas(size: int, stage: str) -> None:
    async def main(site: Site) -> None:
        said = await (await site.client()).play(create(MANY, [SHELL, CALL_B], [{"text": "ok"}]))
        check_indices(said)
        check_agreement(said)
        kinds = ["reasoning", "function_call", "function_call", "message"]
        kinds += ["function_call", "function_call", "message"]
        assert [item["type"] for item in done_items(said)] == kinds

    run(main, stage, in_steps(size))


@on_both_links
def test_b36_arguments_of_two_lanes_alternate_and_do_not_mix(stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        frames = [create([SHELL, CALL_B], stream_id="x"), create([CALL_B, SHELL], stream_id="y")]
        said = await client.ask(*frames, patience_s=PATIENCE_S)
        deltas = [event for event in said if event["type"].endswith("arguments.delta")]
        assert len([*groupby(deltas, lambda event: event["stream_id"])]) > 10, "they alternate"
        assert len(deltas_of(said)) == 4, "no item id stands for two items"
        for lane in "xy":
            of_lane = [{**event} for event in said if event["stream_id"] == lane]
            check_indices(of_lane)
            check_agreement(of_lane)

    run(main, stage, in_steps(1, step_ms=1.0))


# -- B37: the final snapshot -----------------------------------------------------------------------


@in_golden_runs
@pytest.mark.parametrize("final", ["hold", "complete"])
def test_b37_terminal_get_and_replay_say_what_was_streamed(frame: Event, final: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        said = await client.play({**frame, "agent_loop": {"final": final}})
        await check_agreement_everywhere(site, said)
        shown = await site.shown(said[0]["response"]["id"])
        cut = reported_items(said)[len(done_items(said)) :]
        assert [*done_items(said), *cut] == shown["output"] != []
        assert shown["usage"] == said[-1]["response"]["usage_total"] != NO_USAGE
        assert shown["created_at"] == said[0]["response"]["created_at"]

    run(main, "websocket")


@in_golden_runs
def test_b37_get_shows_each_turn_as_it_was_streamed(frame: Event) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        said = await client.ask(frame)
        shown = await site.shown(said[0]["response"]["id"])
        assert shown["output"] == reported_items(said)
        assert shown["usage"] == said[-1]["response"]["usage_total"]
        is_over = said[-1]["type"] in TERMINALS
        assert shown["status"] == ("incomplete" if is_over else "in_progress")

    run(main, "websocket")


@in_golden_runs
def test_b37_same_seed_says_the_same(frame: Event) -> None:
    def play(seed: int) -> list[Event]:
        heard: list[Event] = []

        async def main(site: Site) -> None:
            simulation = {**frame["simulation"], "seed": seed, "profile": "spark1000"}
            client = await site.client()
            heard.extend(await client.play({**frame, "simulation": simulation}, patience_s=5.0))

        run(main)
        return heard

    assert play(7) == play(7)
    assert reported_items(play(7)) == reported_items(play(8))


CHAINED = ["text", "reasoning and text", "one call", "two calls", "custom call", "empty text"]


@pytest.mark.parametrize("name", CHAINED)
def test_b37_chain_goes_on_from_what_was_shown(name: str) -> None:
    """The prompt after a parent is that of its input, its shown items and the client's outputs."""
    requests: list[GenRequest] = []

    async def main(site: Site) -> None:
        client = await site.client()
        said = await client.play(GOLDEN[name])
        history = [user("go")]
        for done in of_type(said, "response.done"):
            items = done["response"]["output"]
            calls = [item for item in items if "call_id" in item]
            history += items + [output(call["call_id"], kind=call["type"]) for call in calls]
        parent = said[-1]["response"]["id"]
        await client.ask(create(input=[user("next")], previous_response_id=parent))
        await client.ask(create(input=[*history, user("next")]))
        chained, whole = requests[-2:]
        assert chained.ids == whole.ids

    run(main, "memory", noting(requests))


# -- B39: what one step holds ----------------------------------------------------------------------


def without_deltas(said: list[Event]) -> list[Event]:
    """All that does not depend on how the text was divided."""
    kept = [event for event in said if not event["type"].endswith(".delta")]
    return [{**event, "sequence_number": None} for event in kept]


@pytest.mark.parametrize("step_ms", [0.0, 1.0], ids=["at once", "one by one"])
@in_golden_runs
def test_b39_step_size_changes_nothing_but_the_deltas(frame: Event, step_ms: float) -> None:
    def play(size: int) -> list[Event]:
        heard: list[Event] = []

        async def main(site: Site) -> None:
            heard.extend(await (await site.client()).play(frame, patience_s=1.0))

        run(main, make_engine=in_steps(size, step_ms))
        return heard

    single, *others = [play(size) for size in (1, 2, 7, 255)]
    for said in others:
        assert without_deltas(said) == without_deltas(single)
        joined = {key: "".join(deltas) for key, deltas in deltas_of(said).items()}
        assert joined == {key: "".join(deltas) for key, deltas in deltas_of(single).items()}
        check_agreement(said)
    delta_counts = [len(said) for said in (single, *others)]
    assert delta_counts == sorted(delta_counts, reverse=True)
