"""What a model samples, parsed: round trips for every split into steps, cuts, malformed turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.tokens.frame import TURN_START, read_header
from agentloop.tokens.parse import (
    Closed,
    Cut,
    Delta,
    Opened,
    Parsed,
    Parser,
    reasoning_count,
)
from agentloop.tokens.render import (
    Said,
    SaidCall,
    SaidReasoning,
    SaidText,
    SaidTokens,
    as_history,
    render_items,
    render_result,
    render_turn,
)
from agentloop.tokens.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FIRST_SPECIAL,
    MESSAGE,
    RETURN,
    START,
    vocabulary,
)
from agentloop.wire.items import (
    AnyItem,
    CustomToolCall,
    FunctionCall,
    Message,
    Reasoning,
    ReasoningText,
    WebSearchCall,
)
from tests.tokens import oracle

MESSAGE_OPENED = Opened("message", phase="final_answer")
MARKERS = (START, END, MESSAGE, CHANNEL, CONSTRAIN, RETURN, CALL)

queries = st.dictionaries(st.text(max_size=4), st.integers(0, 9) | st.text(max_size=4), max_size=3)
said = st.one_of(
    st.builds(SaidReasoning, oracle.texts),
    st.builds(SaidText, oracle.texts),
    st.builds(SaidCall, oracle.names, oracle.texts),
    st.builds(SaidCall, st.just("files.read"), oracle.texts),
    st.builds(SaidCall, oracle.names, oracle.texts, st.just("custom_tool_call")),
    st.builds(
        lambda query: SaidCall("web_search", msgspec.json.encode(query).decode(), "hosted_call"),
        queries,
    ),
)
turns = st.lists(said, max_size=5)
ordinary = st.integers(0, 2000) | st.integers(0, FIRST_SPECIAL - 1)
anything = st.lists(ordinary | st.sampled_from(MARKERS) | st.integers(FIRST_SPECIAL, 2**32 - 1))


def parse(ids: Sequence[int], cuts: Sequence[int] = ()) -> list[Parsed]:
    """Feed the ids in steps that end at the cuts, and finish."""
    parser = Parser()
    parsed: list[Parsed] = []
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        parsed += parser.feed(ids[begin:end])
    return parsed + parser.finish()


def whole(parsed: list[Parsed]) -> list[tuple[Opened, Closed | Cut]]:
    """Each item with its end, after checking that its deltas joined are its text."""
    items: list[tuple[Opened, Closed | Cut]] = []
    opened: Opened | None = None
    deltas: list[str] = []
    for each in parsed:
        match each:
            case Opened():
                assert opened is None
                opened, deltas = each, []
            case Delta(text):
                assert opened is not None
                assert text
                text.encode()  # no lone surrogate
                deltas.append(text)
            case Closed(text) | Cut(text):
                assert opened is not None
                assert "".join(deltas) == text
                items.append((opened, each))
                opened = None
    assert opened is None
    return items


def item_of(opened: Opened, text: str, item_id: str) -> AnyItem:
    """What the server makes of a parsed item."""
    match opened.kind:
        case "reasoning":
            return Reasoning(id=item_id, content=[ReasoningText(text=text)])
        case "message":
            return Message(id=item_id, role="assistant", content=text)
        case "function_call":
            *namespace, name = opened.name.rsplit(".", 1)
            return FunctionCall(
                id=item_id,
                call_id=f"call_{item_id}",
                name=name,
                namespace="".join(namespace) or None,
                arguments=text,
            )
        case "custom_tool_call":
            return CustomToolCall(
                id=item_id, call_id=f"call_{item_id}", name=opened.name, input=text
            )
        case "hosted_call":
            return WebSearchCall(id=item_id, action=msgspec.json.decode(text))


def ids_of(*parts: str | int) -> list[int]:
    encode = vocabulary().encode
    return [i for part in parts for i in ([part] if isinstance(part, int) else encode(part))]


def flat(parts: list[list[int]]) -> list[int]:
    return [token_id for part in parts for token_id in part]


def cuts_of(data: st.DataObject, ids: Sequence[int]) -> list[int]:
    return sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=len(ids))))


def expected(part: Said, *, is_call_ahead: bool) -> tuple[Opened, str]:
    match part:
        case SaidReasoning(text):
            return Opened("reasoning"), text
        case SaidText(text):
            if is_call_ahead:
                return Opened("message", phase="commentary"), text
            return MESSAGE_OPENED, text
        case SaidCall(name, arguments, "hosted_call"):
            query = msgspec.json.decode(arguments)
            return Opened("hosted_call", name), msgspec.json.encode(query, order="sorted").decode()
        case SaidCall(name, arguments, kind):
            return Opened(kind, name), arguments
        case SaidTokens():
            raise AssertionError("its text depends on its ids")


@given(turns, st.data())
def test_what_was_said_is_parsed_however_it_is_split(turn: list[Said], data: st.DataObject) -> None:
    ids = flat(render_turn(turn))
    heard = [(opened, end.text) for opened, end in whole(parse(ids, cuts_of(data, ids)))]
    assert heard == [
        expected(part, is_call_ahead=any(isinstance(p, SaidCall) for p in turn[index + 1 :]))
        for index, part in enumerate(turn)
        if part != SaidReasoning("")
    ]


@given(oracle.histories(), turns)
def test_sampled_ids_are_what_the_renderer_writes(items: list[AnyItem], turn: list[Said]) -> None:
    """Parsed back and rendered again, a turn gives its own ids, then its hosted results."""
    items = [*items, Message(role="user", content="go on")]
    context = render_items(items)
    ids = flat(render_turn(turn))
    if ids:
        context.extend(TURN_START)
        context += as_history(ids)
    new = [
        item_of(opened, end.text, f"item_{index}")
        for index, (opened, end) in enumerate(whole(parse(ids)))
    ]
    for item in new:
        if isinstance(item, WebSearchCall):
            context += render_result(None)
    same_turn = {f"item_{index}": 7 for index in range(len(new))}
    assert render_items([*items, *new], turns=same_turn) == context


@given(anything, st.data())
def test_anything_is_parsed_alike_however_it_is_split(ids: list[int], data: st.DataObject) -> None:
    assert whole(parse(ids, cuts_of(data, ids))) == whole(parse(ids))


@given(st.lists(ordinary, max_size=30), st.data())
def test_text_is_that_of_its_bytes(ids: list[int], data: st.DataObject) -> None:
    turn = flat(render_turn([SaidTokens(tuple(ids))]))
    ((_, closed),) = whole(parse(turn, cuts_of(data, turn)))
    text = b"".join(oracle.token_bytes()[i] for i in ids).decode("utf-8", "replace")
    assert closed == Closed(text)


@given(st.lists(said, min_size=1, max_size=4))
def test_the_oracle_hears_the_same(turn: list[Said]) -> None:
    ids = flat(render_turn(turn))
    prefix = {"function_call": "functions.", "custom_tool_call": "custom."}
    assert oracle.heard(ids) == [
        (end.text, prefix.get(opened.kind, "") + opened.name or None)
        for opened, end in whole(parse(ids))
    ]


@given(turns, st.data())
def test_a_cut_turn_leaves_no_open_ends(turn: list[Said], data: st.DataObject) -> None:
    """Cut anywhere: closed items stay, a cut message is closed, a cut call and a header go."""
    ids = flat(render_turn(turn))
    cut = ids[: data.draw(st.integers(0, len(ids)))]
    history = as_history(cut).tolist()
    assert not history or history[-1] in (END, CALL)
    kept = [
        (opened, Closed(end.text))
        for opened, end in whole(parse(cut))
        if isinstance(end, Closed) or not opened.kind.endswith("call")
    ]
    assert whole(parse(history)) == kept


@pytest.mark.parametrize("text", ["🦖", "👩‍👩‍👧‍👦", "ไทย", "a\u2028b", "é", "\x00"])
def test_characters_survive_one_token_at_a_time(text: str) -> None:
    ids = flat(render_turn([SaidText(text), SaidCall("f", text)]))
    items = whole(parse(ids, range(len(ids))))
    assert [end.text for _, end in items] == [text, text]


def test_a_cut_within_a_character_is_a_replacement_character() -> None:
    ids = flat(render_turn([SaidText("a 🦖")]))
    items = whole(parse(ids[:-2], range(len(ids) - 2)))
    assert items == [(MESSAGE_OPENED, Cut("a \ufffd"))]


def test_a_step_of_text_is_one_delta() -> None:
    parser = Parser()
    parser.feed(ids_of(CHANNEL, "final", MESSAGE))
    assert parser.feed(ids_of("Hello there")) == [Delta("Hello there")]
    assert parser.feed([]) == []
    assert parser.feed(ids_of("!", RETURN)) == [Delta("!"), Closed("Hello there!")]
    assert parser.finish() == []


def test_an_item_opens_with_its_message_token() -> None:
    parser = Parser()
    ids = ids_of(" to=functions.ls", CHANNEL, "commentary", " ", CONSTRAIN, "json")
    assert [parser.feed([token_id]) for token_id in ids] == [[]] * len(ids)
    assert parser.feed([MESSAGE]) == [Opened("function_call", "ls")]


FINAL = (CHANNEL, "final", MESSAGE)


@pytest.mark.parametrize(
    ("parts", "items"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param(["Hello"], [], id="header-at-the-finish"),
        pytest.param([CHANNEL, "final"], [], id="channel-at-the-finish"),
        pytest.param(
            [CHANNEL, "final", MESSAGE], [(MESSAGE_OPENED, Cut(""))], id="opened-at-the-finish"
        ),
        pytest.param(
            ["Hello  you", END], [(MESSAGE_OPENED, Closed("Hello you"))], id="no-header-at-all"
        ),
        pytest.param(
            [CHANNEL, "final Hello", RETURN],
            [(MESSAGE_OPENED, Closed("Hello"))],
            id="no-message-token",
        ),
        pytest.param(
            [CHANNEL, "analysis so", END, START, "assistant", *FINAL, "x", RETURN],
            [(Opened("reasoning"), Closed("so")), (MESSAGE_OPENED, Closed("x"))],
            id="no-message-token-in-reasoning",
        ),
        pytest.param(
            [" to=functions.f", CHANNEL, "commentary", CALL], [], id="call-without-arguments"
        ),
        pytest.param(
            ["Well ", *FINAL, "hi", RETURN],
            [(MESSAGE_OPENED, Closed("hi"))],
            id="text-before-channel",
        ),
        pytest.param([MESSAGE, "hi", END], [(MESSAGE_OPENED, Closed("hi"))], id="no-channel"),
        pytest.param(
            [CHANNEL, "musing", MESSAGE, "hi", END],
            [(MESSAGE_OPENED, Closed("hi"))],
            id="unknown-channel",
        ),
        pytest.param(
            [CHANNEL, "commentary to=functions.ls ", CONSTRAIN, "json", MESSAGE, "{}", CALL],
            [(Opened("function_call", "ls"), Closed("{}"))],
            id="recipient-in-the-channel",
        ),
        pytest.param(
            [CHANNEL, "analysis to=browser.search code", MESSAGE, "{}", CALL],
            [(Opened("hosted_call", "browser.search"), Closed("{}"))],
            id="recipient-wins-over-channel",
        ),
        pytest.param(
            [" to=all", *FINAL, "hi", END], [(MESSAGE_OPENED, Closed("hi"))], id="to-everybody"
        ),
        pytest.param(
            [*FINAL, "a", START, "assistant", *FINAL, "b", RETURN],
            [(MESSAGE_OPENED, Closed("a")), (MESSAGE_OPENED, Closed("b"))],
            id="no-end",
        ),
        pytest.param(
            [*FINAL, "a", END, *FINAL, "b", RETURN],
            [(MESSAGE_OPENED, Closed("a")), (MESSAGE_OPENED, Closed("b"))],
            id="no-start",
        ),
        pytest.param(
            [*FINAL, "a", CHANNEL, MESSAGE, CONSTRAIN, "b", 199999, 200100, END],
            [(MESSAGE_OPENED, Closed("a<|channel|><|message|><|constrain|>b<|endoftext|>\ufffd"))],
            id="special-ids-in-text",
        ),
        pytest.param(
            [*FINAL, vocabulary().encode("🦖")[0], CHANNEL, END],
            [(MESSAGE_OPENED, Closed("\ufffd<|channel|>"))],
            id="special-id-within-a-character",
        ),
        pytest.param(
            [200100, *FINAL, "a", END], [(MESSAGE_OPENED, Closed("a"))], id="special-id-in-header"
        ),
        pytest.param([END, END, RETURN, START, START], [], id="ends-without-messages"),
    ],
)
def test_malformed_turns(parts: list[Any], items: list[tuple[Opened, Closed | Cut]]) -> None:
    assert whole(parse(ids_of(*parts))) == items


def test_the_last_id_tells_how_a_turn_ends() -> None:
    call, text, thought = SaidCall("f", "{}"), SaidText("hi"), SaidReasoning("hm")
    assert flat(render_turn([text, call]))[-1] == CALL
    assert flat(render_turn([call, text]))[-1] == RETURN
    assert flat(render_turn([thought]))[-1] == RETURN
    assert flat(render_turn([thought, text])).count(RETURN) == 1


def test_each_part_has_its_ids_and_only_the_first_lacks_its_start() -> None:
    first, second = render_turn([SaidText("a"), SaidText("b")])
    assert first == ids_of(*FINAL, "a", END)
    assert second == ids_of(START, "assistant", *FINAL, "b", RETURN)


def test_raw_ids_are_kept_as_they_are() -> None:
    odd = tuple(ids_of("h", "e", "llo"))  # not how the vocabulary would split it
    assert list(odd) != vocabulary().encode("hello")
    (ids,) = render_turn([SaidTokens(odd)])
    assert ids == [*ids_of(*FINAL), *odd, RETURN]


def test_malformed_arguments_are_sampled_as_given() -> None:
    for kind in ("function_call", "hosted_call"):
        ids = flat(render_turn([SaidCall("x", '{"a": ', kind)]))
        ((_, closed),) = whole(parse(ids))
        assert closed == Closed('{"a": ')


@given(st.lists(ordinary | st.sampled_from(MARKERS), max_size=20))
def test_any_header_can_be_read(ids: list[int]) -> None:
    header = read_header(ids)
    assert header.name == "" or header.kind.endswith("call")
    assert (header.phase != "") == (header.kind == "message")


def test_reasoning_is_counted_without_its_frame() -> None:
    thoughts = ("hm, let me see", "so")
    ids = flat(
        render_turn([SaidReasoning(thoughts[0]), SaidText("hi"), SaidReasoning(thoughts[1])])
    )
    assert reasoning_count(ids) == sum(len(vocabulary().encode(text)) for text in thoughts)
    assert reasoning_count([]) == reasoning_count(flat(render_turn([SaidText("hi")]))) == 0


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        pytest.param([*FINAL, "a", RETURN, "stray"], [*FINAL, "a", END], id="words-after-the-end"),
        pytest.param([*FINAL, "a", END, START], [*FINAL, "a", END], id="start-alone"),
        pytest.param(["a ", *FINAL, "b"], ["a ", *FINAL, "b", END], id="words-before-the-channel"),
        pytest.param([" to=functions.f", MESSAGE, "{"], [], id="first-call-cut"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_history_of_a_turn_that_did_not_end_well(parts: list[Any], kept: list[Any]) -> None:
    assert as_history(ids_of(*parts)).tolist() == ids_of(*kept)
