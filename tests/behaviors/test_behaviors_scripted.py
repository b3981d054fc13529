"""Scripts: said as written, refused with the part's path, failing on their first attempts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agentloop.behaviors.scripted import Scripted, kind_of, repeated_ids
from agentloop.engine.api import Fault, Sample, Stall
from agentloop.errors import ProtocolError
from agentloop.loop.request import skip_ids
from agentloop.tokens.render import Said, SaidCall, SaidReasoning, SaidText, render_turn
from agentloop.tokens.vocabulary import CALL, RETURN, vocabulary
from agentloop.wire.items import FunctionTool
from agentloop.wire.requests import ScriptedPart, ScriptedRepeat
from tests.behaviors.behavior_kit import heard, ids_of, turn_of

SHELL = FunctionTool(name="shell")
WEB = Raw(b'{"type":"web_search_preview","filters":{"a":[1]}}')
PATCH = Raw(b'{"type":"custom","name":"apply_patch"}')
HELLO = {"text": "hello"}


def scripted(*turns: Any) -> Scripted:
    return Scripted(msgspec.convert(turns, list[list[ScriptedPart]]))


def test_a_turn_says_its_parts_in_order() -> None:
    script = scripted(
        [
            {"reasoning": "I look."},
            {"text": "One moment."},
            {"call": {"name": "shell", "arguments": {"z": "ls", "a": [1, 2.5, None]}}},
            {"call": {"name": "read", "arguments": '{"cut'}},
        ]
    ).plan(turn_of(tools=[SHELL]))
    assert heard(script) == [
        ("reasoning", "", "I look."),
        ("message", "", "One moment."),
        ("function_call", "shell", '{"z":"ls","a":[1,2.5,null]}'),
        ("function_call", "read", '{"cut'),
    ]


def test_the_ids_are_those_of_the_renderer() -> None:
    script = scripted([{"reasoning": "hm"}, HELLO, {"call": {"name": "shell"}}]).plan(turn_of())
    said: list[Said] = [SaidReasoning("hm"), SaidText("hello"), SaidCall("shell", "{}")]
    assert script.parts == tuple(Sample(tuple(ids)) for ids in render_turn(said))


def test_turns_are_said_by_number_then_done() -> None:
    behavior = scripted([{"text": "first"}], [{"text": "second"}])
    texts = [heard(behavior.plan(turn_of(number)))[0][2] for number in (1, 0, 2, 3, 99)]
    assert texts == ["second", "first", "done", "done", "done"]


def test_a_text_ends_its_turn_and_a_call_ends_it_otherwise() -> None:
    behavior = scripted([HELLO], [HELLO, {"call": {"name": "shell"}}])
    assert ids_of(behavior.plan(turn_of(0)))[-1] == RETURN
    assert ids_of(behavior.plan(turn_of(1)))[-1] == CALL


def test_silent_reasoning_keeps_the_parts_in_step() -> None:
    behavior = scripted([{"reasoning": ""}, {"stall_ms": 20}, HELLO])
    stall, sample = behavior.plan(turn_of()).parts
    assert stall == Stall(0.02)
    assert isinstance(sample, Sample)


@pytest.mark.parametrize(
    ("name", "tools", "kind"),
    [
        ("shell", [SHELL], "function_call"),
        ("nowhere", [SHELL, WEB, PATCH], "function_call"),
        ("web_search", [SHELL, WEB], "hosted_call"),
        ("web_search", [WEB, FunctionTool(name="web_search")], "function_call"),
        ("web_search", [], "function_call"),
        ("apply_patch", [WEB, PATCH], "custom_tool_call"),
        ("apply_patch", [PATCH, FunctionTool(name="apply_patch")], "function_call"),
        ("git", [Raw(b'{"type":"namespace","name":"git","tools":[]}')], "function_call"),
        ("7", [Raw(b'{"type":"custom","name":7}')], "function_call"),
    ],
)
def test_the_listed_tools_say_what_a_call_is(name: str, tools: list[Any], kind: str) -> None:
    assert kind_of(name, tools) == kind


def test_a_call_follows_the_tools_of_each_request() -> None:
    behavior = scripted([{"call": {"name": "web_search", "arguments": {"query": "x", "a": 1}}}])
    hosted, local = (heard(behavior.plan(turn_of(tools=t))) for t in ([WEB], []))
    assert hosted == [("hosted_call", "web_search", '{"a":1,"query":"x"}')]
    assert local == [("function_call", "web_search", '{"query":"x","a":1}')]


def test_a_custom_tool_gets_its_input_as_it_stands() -> None:
    behavior = scripted([{"call": {"name": "apply_patch", "arguments": "*** Begin\n+x"}}])
    said = heard(behavior.plan(turn_of(tools=[PATCH])))
    assert said == [("custom_tool_call", "apply_patch", "*** Begin\n+x")]


@pytest.mark.parametrize(
    ("code", "is_retryable"), [("overloaded", True), ("server_error", False), ("odd", False)]
)
def test_a_fault_fires_on_its_first_attempts(code: str, is_retryable: bool) -> None:
    behavior = scripted([HELLO, {"fail": code, "times": 2}, {"text": "on"}])
    plans = [behavior.plan(turn_of(attempt=attempt)).parts for attempt in range(4)]
    assert [[part for part in plan if isinstance(part, Fault)] for plan in plans] == [
        [Fault(code, is_retryable)], [Fault(code, is_retryable)], [], []
    ]  # fmt: skip
    assert isinstance(plans[0][1], Fault)


def test_a_retry_goes_on_where_the_fault_cut() -> None:
    behavior = scripted([{"text": "one two three"}, {"fail": "overloaded"}, {"text": "four"}])
    before = behavior.plan(turn_of()).parts[0]
    assert isinstance(before, Sample)
    rest = skip_ids(behavior.plan(turn_of(attempt=1)), len(before.ids))
    assert [*before.ids, *ids_of(rest)] == ids_of(behavior.plan(turn_of(attempt=9)))


def test_a_turn_that_only_fails_says_done_afterwards() -> None:
    behavior = scripted([{"fail": "server_error"}])
    assert behavior.plan(turn_of()).parts[0] == Fault("server_error", is_retryable=False)
    assert heard(behavior.plan(turn_of(attempt=1))) == [("message", "", "done")]


def test_raw_tokens_are_sampled_as_they_are() -> None:
    ids = [24912, 199999, 0, 201087]
    sampled = ids_of(scripted([{"raw_tokens": ids}]).plan(turn_of()))
    assert sampled[-5:] == [*ids, RETURN]


@given(
    text=st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable()),
    tokens=st.integers(1, 400),
)
def test_a_repeat_has_exactly_its_tokens(text: str, tokens: int) -> None:
    assert len(repeated_ids(ScriptedRepeat(text, tokens))) == tokens


@pytest.mark.parametrize("text", ["x ", "def f():\n    pass\n", " a"])
def test_a_repeat_is_tokenized_as_a_history_will_be(text: str) -> None:
    ids = list(repeated_ids(ScriptedRepeat(text, 5_000)))
    again = vocabulary().encode(vocabulary().decode(ids))
    assert again == ids


def test_a_repeat_that_would_take_too_many_characters_repeats_its_ids() -> None:
    once = vocabulary().encode(" " * 1_000)
    ids = repeated_ids(ScriptedRepeat(" " * 1_000, 100_000))
    assert list(ids) == (once * 100_000)[:100_000]


@pytest.mark.parametrize(
    ("parts", "index", "told"),
    [
        ([HELLO, {}], "[1]", "found none"),
        ([{"text": "a", "reasoning": "b"}], "[0]", "found reasoning and text"),
        ([HELLO | {"times": 2}], "[0]", "times goes only with fail"),
        ([HELLO, {"fail": "overloaded", "times": 0}], "[1]", "at least 1"),
        ([HELLO, {"fail": ""}], "[1]", "error code"),
        ([HELLO, {"stall_ms": -1}], "[1]", "not -1"),
        ([HELLO, {"stall_ms": 1e300}], "[1]", "not 1e+300"),
        ([{"call": {"name": "two words"}}], "[0]", "one word"),
        ([{"call": {"name": ""}}], "[0]", "one word"),
        ([{"raw_tokens": [1, 201_088]}], "[0]", "not 201088"),
        ([{"raw_tokens": [-1]}], "[0]", "not -1"),
        ([{"repeat": {"text": "", "tokens": 3}}], "[0]", "needs a text"),
        ([{"repeat": {"text": "x", "tokens": 0}}], "[0]", "at least 1 token"),
        ([{"repeat": {"text": "x", "tokens": 70_000}}] * 2, "", "at most 131072"),
        ([], "", "a text or a call"),
        ([{"reasoning": "hm"}, {"stall_ms": 1}], "", "a text or a call"),
    ],
)
def test_a_script_that_cannot_be_said_is_refused(parts: Any, index: str, told: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        scripted([HELLO], parts)
    path = f"simulation.turns[1]{index}"
    assert refusal.value.param == path
    assert refusal.value.message.startswith(f"{path}: ")
    assert told in refusal.value.message


@pytest.mark.parametrize("part", [{"raw_tokens": [1]}, {"repeat": {"text": "x", "tokens": 2}}])
def test_tokens_and_repeats_count_as_text(part: Any) -> None:
    assert len(heard(scripted([part]).plan(turn_of()))) == 1


def test_the_key_names_what_is_said() -> None:
    assert scripted([HELLO]).key == scripted([HELLO]).key
    others = [scripted([{"text": "hi"}]), scripted([HELLO], [HELLO]), scripted([HELLO, HELLO])]
    assert len({scripted([HELLO]).key, *(other.key for other in others)}) == 4
