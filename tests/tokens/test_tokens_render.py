"""Histories to ids, token for token as the oracle renders them, and our own canonical forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ProtocolError, UnknownCall
from agentloop.tokens.frame import TURN_START
from agentloop.tokens.render import (
    RESULT_PLACEHOLDER,
    Head,
    called_name,
    render_head,
    render_items,
    render_result,
)
from agentloop.tokens.vocabulary import FIRST_SPECIAL, spelling, vocabulary
from agentloop.wire.items import (
    AnyItem,
    Compaction,
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    FunctionTool,
    ItemReference,
    Message,
    Reasoning,
    ReasoningText,
    UnknownItem,
    WebSearchCall,
)
from tests.tokens import oracle

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

heads = st.builds(
    Head,
    instructions=st.none() | oracle.texts,
    tools=st.lists(st.builds(FunctionTool, name=oracle.names), max_size=2).map(tuple),
    reasoning_effort=st.sampled_from(("low", "medium", "high")),
    date=st.sampled_from(("2026-01-01", "1999-12-31")),
)


def shown(ids: Iterable[int]) -> str:
    """Ids as text, special ones by their spelling."""
    decode = vocabulary().decode
    return "".join(spelling(i) if i >= FIRST_SPECIAL else decode([i]) for i in ids)


def assistant(text: str, item_id: str | None = None) -> Message:
    return Message(role="assistant", content=text, id=item_id)


def search(item_id: str) -> WebSearchCall:
    return WebSearchCall(id=item_id, action={"type": "search", "query": item_id})


@given(heads, oracle.histories())
def test_a_prompt_is_the_oracles(head: Head, items: list[AnyItem]) -> None:
    prompt = render_head(head) + render_items(items)
    prompt.extend(TURN_START)
    assert prompt.tolist() == oracle.rendered(head, items)


@given(oracle.histories(), st.data())
def test_a_history_renders_in_pieces(items: list[AnyItem], data: st.DataObject) -> None:
    """Cut anywhere but within a run of model output, with calls carried by name."""
    starts = [i for i, item in enumerate(items) if isinstance(item, Message | FunctionCallOutput)]
    starts = [i for i in starts if getattr(items[i], "role", "user") != "assistant"]
    cut = data.draw(st.sampled_from([0, *starts, len(items)]))
    names = {i.call_id: called_name(i) for i in items[:cut] if isinstance(i, FunctionCall)}
    pieces = render_items(items[:cut]) + render_items(items[cut:], names)
    assert pieces == render_items(items)


@given(oracle.histories(), st.data())
def test_a_longer_history_keeps_its_prefix(items: list[AnyItem], data: st.DataObject) -> None:
    users = [i for i, item in enumerate(items) if getattr(item, "role", "") == "user"]
    cut = data.draw(st.sampled_from([*users, len(items)]))
    prefix = render_items(items[:cut])
    assert render_items(items)[: len(prefix)] == prefix


@given(oracle.histories())
def test_a_cache_before_the_vocabulary_changes_nothing(items: list[AnyItem]) -> None:
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return vocabulary().encode(text)

    assert render_items(items, encode=encode) == render_items(items)
    texts = {item.arguments for item in items if isinstance(item, FunctionCall)}
    assert texts <= set(asked)


def test_a_head_without_instructions_and_tools_is_the_system_message_alone() -> None:
    assert render_head(Head()) == render_head(Head(instructions=""))
    assert shown(render_head(Head())).count("<|start|>") == 1


def test_functions_shown_as_json_are_still_called_as_functions() -> None:
    tools = (FunctionTool(name="f", parameters={"anyOf": []}),)
    calls = "Calls to these tools must go to the commentary channel: 'functions'."
    assert calls in shown(render_head(Head(tools=tools)))
    assert calls not in shown(render_head(Head(tools=(msgspec.Raw(b'{"type":"web_search"}'),))))


def test_other_tools_stand_in_the_developer_message() -> None:
    head = Head(instructions="Be nice", tools=(msgspec.Raw(b'{"type":"web_search"}'),))
    assert shown(render_head(head)).endswith(
        "<|start|>developer<|message|># Instructions\n\nBe nice\n\n"
        '# Tools\n\n## others\n\n{"type":"web_search"}<|end|>'
    )


PARTS = [ContentPart(text="do"), ContentPart(type="input_image"), ContentPart(text="ne")]
HELLO = [Message(role="user", content="hi")]
NEW = UnknownItem(type="new", raw=msgspec.Raw(b'{"type": "new", "b": [1, 2.50], "a": null}'))
NAMESPACED = FunctionCall(call_id="c", name="read", namespace="files", arguments="{}")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        pytest.param(
            [NAMESPACED, FunctionCallOutput(call_id="c", output="ok")],
            "<|start|>assistant to=functions.files.read<|channel|>commentary <|constrain|>json"
            "<|message|>{}<|call|>"
            "<|start|>functions.files.read to=assistant<|channel|>commentary<|message|>ok<|end|>",
            id="function-of-a-namespace",
        ),
        pytest.param(
            [
                CustomToolCall(call_id="c", name="apply_patch", input="*** Begin"),
                CustomToolCallOutput(call_id="c", output=PARTS),
            ],
            "<|start|>assistant to=custom.apply_patch<|channel|>commentary"
            "<|message|>*** Begin<|call|>"
            "<|start|>custom.apply_patch to=assistant<|channel|>commentary"
            "<|message|>do[input_image]ne<|end|>",
            id="custom",
        ),
        pytest.param(
            [Compaction(encrypted_content="what was")],
            "<|start|>developer<|message|>what was<|end|>",
            id="compaction",
        ),
        pytest.param(
            [NEW],
            '<|start|>developer<|message|>{"a":null,"b":[1,2.5],"type":"new"}<|end|>',
            id="unknown",
        ),
        pytest.param([Reasoning(encrypted_content="sealed")], "", id="reasoning-without-text"),
        pytest.param(
            [Reasoning(content=[ReasoningText(text="a")], summary=[ReasoningText(text="b")])],
            "<|start|>assistant<|channel|>analysis<|message|>a<|end|>",
            id="reasoning-content-wins",
        ),
        pytest.param(
            [assistant("a"), Reasoning(), UnknownItem(type="mcp_call", raw=msgspec.Raw(b"{}"))],
            "<|start|>assistant<|channel|>commentary<|message|>a<|end|>"
            "<|start|>developer<|message|>{}<|end|>",
            id="unknown-call-follows",
        ),
        pytest.param([], "", id="nothing"),
    ],
)
def test_canonical_forms(items: list[AnyItem], expected: str) -> None:
    assert shown(render_items(items)) == expected


def call_of(query: str) -> str:
    arguments = f'{{"query":"{query}"}}'
    return (
        "<|start|>assistant to=web_search<|channel|>commentary <|constrain|>json"
        f"<|message|>{arguments}<|call|>"
    )


def result_of(text: str) -> str:
    return f"<|start|>web_search to=assistant<|channel|>commentary<|message|>{text}<|end|>"


FUNCTION = FunctionCall(id="f", call_id="c", name="f", arguments="{}")
FUNCTION_SHOWN = shown(render_items([FUNCTION]))
DEEP = UnknownItem("new", msgspec.Raw(b"[" * 5000 + b"]" * 5000))
OUTPUT = FunctionCallOutput(call_id="c", output="ok")
OUTPUT_SHOWN = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>ok<|end|>"


def said(text: str, channel: str) -> str:
    return f"<|start|>assistant<|channel|>{channel}<|message|>{text}<|end|>"


@pytest.mark.parametrize(
    ("items", "turns", "expected"),
    [
        pytest.param([search("a")], {}, [call_of("a"), result_of("A")], id="alone"),
        pytest.param(
            [search("a"), search("b")],
            {},
            [call_of("a"), call_of("b"), result_of("A"), result_of(RESULT_PLACEHOLDER)],
            id="one-turn-by-default",
        ),
        pytest.param(
            [search("a"), search("b")],
            {"a": 1, "b": 2},
            [call_of("a"), result_of("A"), call_of("b"), result_of(RESULT_PLACEHOLDER)],
            id="two-turns-when-known",
        ),
        pytest.param(
            [search("a"), FUNCTION, OUTPUT],
            {},
            [call_of("a"), FUNCTION_SHOWN, result_of("A"), OUTPUT_SHOWN],
            id="before-the-clients-output",
        ),
        pytest.param(
            [assistant("x"), search("a"), assistant("y")],
            {},
            [said("x", "commentary"), call_of("a"), result_of("A"), said("y", "final")],
            id="the-next-turn-speaks",
        ),
        pytest.param(
            [search("a"), assistant("x", "m"), search("b")],
            {"a": 1, "m": 1, "b": 2},
            [
                *(call_of("a"), said("x", "final"), result_of("A")),
                *(call_of("b"), result_of(RESULT_PLACEHOLDER)),
            ],
            id="text-after-a-call-when-known",
        ),
    ],
)
def test_results_of_hosted_calls_stand_at_their_turns_end(
    items: list[AnyItem], turns: dict[str, int], expected: list[str]
) -> None:
    ids = render_items(items, results={"a": "A"}, turns=turns)
    assert shown(ids) == "".join(expected)


def test_a_result_alone_renders_as_within_its_history() -> None:
    call = search("a")
    both = render_items([call], results={"a": "A"})
    result = render_result("A")
    assert both[-len(result) :] == result
    assert shown(render_result(None)) == result_of(RESULT_PLACEHOLDER)


@pytest.mark.parametrize(
    ("item", "error"),
    [
        pytest.param(ItemReference(id="msg_1"), ProtocolError, id="reference"),
        pytest.param(Message(role="tool", content=""), ProtocolError, id="role"),
        pytest.param(UnknownItem("new", msgspec.Raw(b'"\\ud800"')), ProtocolError, id="not-json"),
        pytest.param(DEEP, ProtocolError, id="deep"),
        pytest.param(OUTPUT, UnknownCall, id="output-without-its-call"),
    ],
)
def test_what_cannot_be_rendered_is_the_clients_fault(
    item: AnyItem, error: type[Exception]
) -> None:
    with pytest.raises(error):
        render_items([*HELLO, item])


@pytest.mark.traces
def test_recorded_runs_are_the_oracles(shared: Path) -> None:
    paths = sorted((shared / "traces/mini-swe-agent").glob("*.json"))[::6]
    assert paths
    for path in paths:
        items: list[AnyItem] = []
        for message in msgspec.json.decode(path.read_bytes())["messages"]:
            if reasoning := message.get("extra", {}).get("reasoning"):
                text = reasoning if isinstance(reasoning, str) else str(reasoning)
                items.append(Reasoning(content=[ReasoningText(text=text)]))
            items.append(Message(role=message["role"], content=message["content"]))
        assert render_items(items).tolist() == oracle.rendered_items(items), path.name


@pytest.mark.traces
def test_a_recorded_codex_session_is_the_oracles(shared: Path) -> None:
    lines = (shared / "traces/codex-claude-samples/codex_session.jsonl").read_bytes().splitlines()
    records = [msgspec.json.decode(line) for line in lines]
    known = Message | Reasoning | FunctionCall | FunctionCallOutput
    items: list[AnyItem] = [
        msgspec.convert(record["payload"], known)
        for record in records
        if record["type"] == "response_item"
    ]
    assert sum(isinstance(item, FunctionCall) for item in items) == 10
    assert render_items(items).tolist() == oracle.rendered_items(items)
