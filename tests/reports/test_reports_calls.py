"""Calls that were lost, answered in part, answered wrongly, or cut: what the field reported."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest

from agentloop.agent.agent import Agent
from agentloop.agent.api import Silent
from agentloop.drive.append import AppendDrive
from agentloop.engine.api import GenRequest, Sample
from agentloop.ids import IdSource
from agentloop.tokens.vocabulary import vocabulary
from agentloop.wire.requests import Create
from tests.conformance.heard import Event
from tests.reports.report_kit import (
    PATCH,
    SEARCH,
    SHELL,
    STAGES,
    Client,
    Site,
    append,
    check_agreement,
    create,
    done_items,
    error_of,
    noting,
    of_type,
    output,
    pending_of,
    reply_to,
    run,
    suspend,
    types_of,
    user,
    value_of,
)

pytestmark = pytest.mark.parametrize("stage", STAGES)

TEXT: Event = {"text": "Let me look."}
REASONING: Event = {"reasoning": "Hm."}
DONE: list[Event] = [{"text": "All done."}]
ANSWERS = ["one", "two", "three"]
THREE: list[Event] = [{"call": {"name": "shell", "arguments": {"cmd": cmd}}} for cmd in "abc"]


# -- B28: a message beside a call ------------------------------------------------------------------

MIXED = {
    "message then call": [TEXT, SHELL],
    "call then message": [SHELL, TEXT],
    "message between two calls": [SHELL, TEXT, SHELL],
    "messages around": [TEXT, SHELL, TEXT],
    "empty message then call": [{"text": ""}, SHELL],
    "reasoning, message, call": [REASONING, TEXT, SHELL],
    "message then freeform call": [TEXT, PATCH],
    "freeform call then message": [PATCH, TEXT, REASONING],
    "message, hosted call, call": [TEXT, SEARCH, SHELL],
    "call, message, hosted call": [SHELL, TEXT, SEARCH],
}
KINDS = {"text": "message", "reasoning": "reasoning", "web_search": "web_search_call"}
KINDS |= {"shell": "function_call", "patch": "custom_tool_call"}


def kind_of(part: Event) -> str:
    return KINDS[part.get("call", {}).get("name") or next(iter(part))]


@pytest.mark.parametrize("final", ["hold", "complete"])
@pytest.mark.parametrize("step", MIXED.values(), ids=MIXED)
def test_b28_message_and_call_suspends_with_every_call_listed(
    step: list[Event], final: str, stage: str
) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        said = await client.ask(create(step, DONE, agent_loop={"final": final}))
        *_, done = said
        assert types_of(said).count("response.done") == 1
        assert (done["type"], done["response"]["state"]) == ("response.done", "suspended")
        assert [item["type"] for item in done["response"]["output"]] == [*map(kind_of, step)]
        texts = [part["text"] for part in step if "text" in part]
        messages = [item for item in done_items(said) if item["type"] == "message"]
        assert [value_of(item) for item in messages] == texts
        calls = [item["call_id"] for item in done_items(said) if "call_id" in item]
        assert pending_of(done["response"]) == calls

        rest = await client.ask(reply_to(done))
        assert value_of(done_items(rest)[-1]) == "All done."
        end = "response.completed" if final == "complete" else "response.done"
        assert rest[-1]["type"] == end

    run(main, stage)


# -- B29: some outputs of several ------------------------------------------------------------------


def prompt_of(request: GenRequest) -> str:
    return vocabulary().decode(request.ids)


def check_prompt(request: GenRequest) -> None:
    """The new part of the prompt holds the three answers, in call order, and no other."""
    text = prompt_of(request)
    assert [text.count(answer) for answer in ANSWERS] == [1, 1, 1]
    assert sorted(ANSWERS, key=text.index) == ANSWERS
    assert text.count("functions.shell to=assistant") == len(ANSWERS)


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_b29_partial_outputs_stay_and_the_last_resumes_in_call_order(
    order: tuple[int, ...], cut: int, stage: str
) -> None:
    requests: list[GenRequest] = []

    async def main(site: Site) -> None:
        client = await site.client()
        response_id, calls = await suspend(client, THREE, DONE)
        outputs = [output(calls[index], ANSWERS[index]) for index in order]
        said = await client.ask(append(*outputs[:cut]))
        if cut < len(outputs):
            assert types_of(said) == ["response.append.accepted"]
            left = [calls[index] for index in sorted(order[cut:])]
            assert said[0]["pending"] == left
            attached, *_ = await site.attached(response_id)
            assert (attached["state"], pending_of(attached)) == ("suspended", left)
            assert len(requests) == 1, "a partial append runs no step"
            said = await client.ask(append(*outputs[cut:]))
        assert said[0]["pending"] == []
        assert types_of(said).count("response.done") == 1
        assert said[-1]["response"]["state"] == "idle"
        assert len(requests) == 2
        check_prompt(requests[1])

    run(main, stage, noting(requests))


def test_b29_message_without_outputs_waits_for_them(stage: str) -> None:
    requests: list[GenRequest] = []

    async def main(site: Site) -> None:
        client = await site.client()
        _, calls = await suspend(client, THREE, DONE)
        said = await client.ask(append(user("hurry up")))
        assert types_of(said) == ["response.append.accepted"]
        assert said[0]["pending"] == calls
        assert len(requests) == 1
        outputs = [output(*each) for each in zip(calls, ANSWERS, strict=True)]
        said = await client.ask(append(*outputs))
        assert said[-1]["response"]["state"] == "idle"
        check_prompt(requests[1])
        prompt = prompt_of(requests[1])
        assert prompt.index("hurry up") > prompt.index("three")

    run(main, stage, noting(requests))


def test_b29_create_with_one_output_is_refused_and_the_parent_goes_on(stage: str) -> None:
    requests: list[GenRequest] = []

    async def main(site: Site) -> None:
        client = await site.client()
        response_id, calls = await suspend(client, THREE, DONE)
        one = create(DONE, input=[output(calls[1], "two")], previous_response_id=response_id)
        status, code, _ = error_of(await client.ask(one))
        assert (status, code) == (400, "call_not_found")
        assert calls[1] in client.heard[-1]["error"]["message"], "the error names the call"
        outputs = [output(*each) for each in zip(calls, ANSWERS, strict=True)]
        said = await client.ask(append(*outputs))
        assert said[-1]["response"]["id"] == response_id
        assert said[-1]["response"]["state"] == "idle"
        check_prompt(requests[1])

    run(main, stage, noting(requests))


def test_b29_create_with_a_message_leaves_unanswered_calls_behind(stage: str) -> None:
    """On append links the parent is the last turn whose calls all have real results."""
    requests: list[GenRequest] = []

    async def main(site: Site) -> None:
        client = await site.client()
        response_id, calls = await suspend(client, THREE, DONE)
        await client.ask(append(output(calls[1], "two")))
        new = create(DONE, input="something else", previous_response_id=response_id)
        said = await client.ask(new)
        assert said[0]["type"] == "response.created"
        assert said[-1]["response"]["state"] == "idle"
        prompt = prompt_of(requests[1])
        assert "something else" in prompt
        assert "to=assistant" not in prompt, "no output was made up"
        assert "two" not in prompt
        assert (await site.attached(response_id))[0]["state"] == "incomplete"

    run(main, stage, noting(requests))


# -- B33: outputs that answer no call --------------------------------------------------------------

FCO = "function_call_output"
WRONG: dict[str, tuple[Event, str, str]] = {
    "unknown call": (output("cX"), "call_not_found", "call_id"),
    "no call id": ({"type": FCO, "output": "x"}, "invalid_input", "call_id"),
    "empty call id": (output(""), "call_not_found", "call_id"),
    "null call id": ({"type": FCO, "call_id": None, "output": "x"}, "invalid_input", "call_id"),
    "number as call id": ({"type": FCO, "call_id": 7, "output": "x"}, "invalid_input", "call_id"),
    "item id as call id": (output("fc_1"), "call_not_found", "call_id"),
    "null output": (output("$c1", None), "invalid_input", "output"),
    "number as output": (output("$c1", 7), "invalid_input", "output"),
    "object as output": (output("$c1", {"a": 1}), "invalid_input", "output"),
    "no output": ({"type": FCO, "call_id": "$c1"}, "invalid_input", "output"),
    "array of no parts": (output("$c1", ["a"]), "invalid_input", "output[0]"),
    "output of another kind": (output("$c1", kind="custom_tool_call"), "invalid_input", "type"),
}


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize(("item", "code", "field"), WRONG.values(), ids=WRONG)
def test_b33_wrong_output_is_a_typed_error_and_changes_nothing(
    item: Event, code: str, field: str, position: int, stage: str
) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        response_id, (first, second) = await suspend(client, THREE[:2], DONE)
        wrong = {**item, "call_id": first} if item.get("call_id") == "$c1" else item
        before = [output(second, "good")] * position
        found = error_of(await client.ask(append(*before, wrong, event_id="k")))
        assert found == (400, code, f"input[{position}].{field}")
        assert client.heard[-1]["event_id"] == "k"
        attached, *_ = await site.attached(response_id)
        assert (attached["state"], attached["known_keys"]) == ("suspended", [])
        assert pending_of(attached) == [first, second]
        said = await client.ask(append(output(first), output(second)))
        assert said[-1]["response"]["state"] == "idle"

    run(main, stage)


RIGHT: dict[str, tuple[Any, str]] = {
    "empty string": ("", ""),
    "array": ([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], "ab"),
    "empty array": ([], ""),
    "image": ([{"type": "input_image", "image_url": "data:,"}], "[input_image]"),
}


@pytest.mark.parametrize(("said", "rendered"), RIGHT.values(), ids=RIGHT)
def test_b33_arrays_and_empty_strings_are_outputs(said: Any, rendered: str, stage: str) -> None:
    requests: list[GenRequest] = []

    async def main(site: Site) -> None:
        client = await site.client()
        _, (call_id,) = await suspend(client, [SHELL], DONE)
        events = await client.ask(append(output(call_id, said)))
        assert events[-1]["response"]["state"] == "idle"
        assert f"commentary{rendered}assistant" in prompt_of(requests[1])

    run(main, stage, noting(requests))


CALL: Event = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"}


@pytest.mark.parametrize("call_id", ["c1", "cX", ""])
def test_b33_output_before_its_call_in_a_create_is_refused(call_id: str, stage: str) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        calls = [] if call_id == "c1" else [CALL]
        items = [user("go"), *calls, output(call_id), CALL]
        found = error_of(await client.ask(create(DONE, input=items)))
        assert found == (400, "call_not_found", f"input[{1 + len(calls)}].call_id")

    run(main, stage)


def test_b33_output_after_its_call_in_a_create_is_taken(stage: str) -> None:
    async def main(site: Site) -> None:
        items = [user("go"), CALL, output("c1")]
        said = await (await site.client()).ask(create(DONE, DONE, input=items))
        assert said[-1]["response"]["state"] == "idle"

    run(main, stage)


# -- B34: a call cut by the limit ------------------------------------------------------------------


async def limits_within(site: Site, requests: list[GenRequest], *parts: Event) -> range:
    """The limits that cut a turn of these parts within its last one."""
    await (await site.client()).play(create([*parts], DONE))
    samples = [len(part.ids) for part in requests[0].script.parts if isinstance(part, Sample)]
    return range(max(1, sum(samples[:-1])), sum(samples))


CUT = {
    "second of two calls": ([SHELL], SHELL),
    "freeform call after a call": ([SHELL], PATCH),
    "only call": ([], SHELL),
    "only freeform call": ([], PATCH),
    "call after a message": ([TEXT], SHELL),
    "hosted call": ([], SEARCH),
    "hosted call after a call": ([SHELL], SEARCH),
}


@pytest.mark.parametrize(("before", "cut"), CUT.values(), ids=CUT)
def test_b34_cut_call_is_never_announced_wherever_the_limit_hits(
    before: list[Event], cut: Event, stage: str
) -> None:
    requests: list[GenRequest] = []

    async def main(site: Site) -> None:
        client = await site.client()
        limits = await limits_within(site, requests, *before, cut)
        opened = 0
        for limit in limits:
            said = await client.ask(create([*before, cut], max_output_tokens=limit))
            check_agreement(said)
            opened += check_cut(said, len(before))
            response = said[-1]["response"]
            attached, *_ = await site.attached(response["id"])
            assert (attached["state"], pending_of(attached)) == ("incomplete", [])
            await check_refused(client, said)
            if stage == "websocket":
                body = await site.shown(response["id"])
                assert (body["status"], body["output"]) == ("incomplete", response["output"])
        assert opened > 3, "the limit hit inside the arguments"
        *_, last = await client.ask(create([*before, cut], DONE, max_output_tokens=limits.stop))
        assert last["type"] == "response.done", "a whole call within the limit is one"

    run(main, stage, noting(requests))


async def check_refused(client: Client, said: list[Event]) -> None:
    """Nobody may answer the calls of a Response that has ended; a cut one is not even known."""
    response, announced = said[-1]["response"], done_items(said)
    for item in response["output"]:
        if "call_id" in item:
            late = append(output(item["call_id"]), response_id=response["id"])
            status, code, _ = error_of(await client.ask(late))
            assert status == 400
            codes = ["response_already_completed", "call_not_found"]
            assert code in codes[: 1 if item in announced else 2]


def check_cut(said: list[Event], before: int) -> bool:
    """A turn that the limit cut in the item after `before` others; returns whether that one was
    opened at all."""
    assert not of_type(said, "response.done"), "nothing waits for the client"
    *_, end = said
    assert end["type"] == "response.incomplete"
    assert end["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in done_items(said)] == ["completed"] * before
    whole = end["response"]["output"]
    opened = of_type(said, "response.output_item.added")[before:]
    if opened:
        *whole, last = whole
        assert last["id"] == opened[0]["item"]["id"]
        assert last["status"] == "incomplete"
        closed = {"response.function_call_arguments.done", "response.custom_tool_call_input.done"}
        closing = of_type(said, *closed)
        assert last["id"] not in [event["item_id"] for event in closing]
    assert whole == done_items(said)
    return bool(opened)


class Recorded:
    """Tools that only note what they are called with."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def call(self, name: str, arguments: str) -> str:
        self.ran.append(arguments)
        return "ok"


@pytest.mark.parametrize("before", [0, 1])
def test_b34_agent_runs_no_cut_call(before: int, stage: str) -> None:
    requests: list[GenRequest] = []

    async def main(site: Site) -> None:
        calls = [*THREE[:before], SHELL]
        for limit in await limits_within(site, requests, *calls):
            tools = Recorded()
            drive = AppendDrive(await site.link(), IdSource(limit))
            agent = Agent(drive, tools, Silent(), site.service.clock)
            frame = create(calls, DONE, max_output_tokens=limit)
            outcome = await agent.run(msgspec.json.decode(msgspec.json.encode(frame), type=Create))
            assert (outcome.status, outcome.reason) == ("incomplete", "max_output_tokens")
            assert set(tools.ran) <= {'{"cmd":"a"}'}
            assert len(tools.ran) <= before

    run(main, stage, noting(requests))
