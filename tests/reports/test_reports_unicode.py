"""Characters that come in pieces: however bytes fall into tokens and steps, an item's text is the
same wherever it is told."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agentloop.engine.api import Engine, Fault, Generation, GenRequest, Sample, Sink
from agentloop.engine.sim.profiles import INSTANT
from agentloop.tokens.frame import CallKind, recipient_of, write_message
from agentloop.tokens.render import SaidTokens, render_turn
from agentloop.tokens.vocabulary import CALL, END, vocabulary
from tests.conformance.heard import Event
from tests.loop.loop_kit import failing_at
from tests.reports.report_kit import (
    PATIENCE_S,
    SHELL,
    STAGES,
    Client,
    MakeEngine,
    Site,
    Way,
    append,
    breaking,
    byte_ids,
    check_agreement_everywhere,
    create,
    deltas_of,
    in_steps,
    in_steps_of,
    noting,
    output,
    pending_of,
    reported_items,
    run,
    saying,
    user,
    value_of,
)
from tests.tokens import oracle

on_both_links = pytest.mark.parametrize("stage", STAGES)

TEXTS = {
    "emoji": "a😀b",
    "family of joined emoji": "👨‍👩‍👧‍👦",
    "skin tone and flag": "👍🏽🇹🇭🏴\U000e0067\U000e0062\U000e0077\U000e007f",
    "Thai": "กำลังทำงานอยู่ ภาษาไทย",
    "Devanagari": "क्षत्रिय नमस्ते हिन्दी",
    "stacked marks": "Z̷͉̀a͎̓l̴͇g̈́o e\u0301 ᄒ\u1161\u11ab",
    "right to left": "\u05e9\u05dc\u05d5 \u202e\u0645\u0631\u062d\u202c \u06cc\u200c\u062e",
    "line separators": "a\u2028b\u2029c\x85d\x0be\x0cf\r\ng",
    "NUL and controls": "".join(map(chr, range(32))) + "\x7f\x9f",
    "ends of planes": "\ufeff\uffff\ufffe\U0001ffff\U0010ffff\ue000",
    "replacement character": "\ufffd",
    "escapes of JSON": '"\\/\\u0041\\ud800</script>{}',
    "spelled markers": "<|end|><|start|>assistant<|message|>",
}
STRAY = {
    "lone continuation": b"a\x80b",
    "unfinished emoji": b"a\xf0\x9f\x98",
    "unfinished emoji before text": b"\xf0\x9f\x98b",
    "unfinished emoji before an emoji": b"\xf0\x9f\x98\xf0\x9f\x98\x80",
    "overlong": b"\xc0\xaf\xe0\x80\x80",
    "surrogates": b"\xed\xa0\xbd\xed\xb8\x80",
    "beyond the last plane": b"\xf5\x80\x80\x80\xf4\x90\x80\x80",
    "byte order marks": b"\xff\xfe\xef\xbb\xbf",
    "every byte": bytes(range(256)),
    "every byte, backwards": bytes(reversed(range(256))),
}
BYTES = {name: text.encode() for name, text in TEXTS.items()} | STRAY
KINDS = ("message", "reasoning", "function_call", "custom_tool_call")
CALLED: dict[CallKind, str] = {"function_call": "shell", "custom_tool_call": "patch"}


class Turn(NamedTuple):
    """A turn whose last item says exactly some ids.

    Attributes:
        frame: the create that asks for it.
        ids: the ids of the item's text.
        start: how many ids are sampled before them.
        position: the item's output index.
    """

    frame: Event
    ids: list[int]
    start: int
    position: int


def turn_of(kind: str, ids: list[int], **fields: Any) -> Turn:
    """The turn of an item of this kind. Raw ids are a message's text; for any other item they close
    an empty message and write all of what follows."""
    raw = ids
    if kind == "reasoning":
        raw = [END, *write_message("assistant", ids, channel="analysis")]
    for call_kind, name in CALLED.items():
        if kind == call_kind:
            recipient = recipient_of(call_kind, name)
            call = write_message(
                "assistant", ids, recipient=recipient, channel="commentary", end=CALL
            )
            raw = [END, *call]
    (sampled,) = render_turn([SaidTokens(tuple(raw))])
    position = int(kind != "message")
    start = len(sampled) - len(ids) - 1 - position
    return Turn(create([{"raw_tokens": raw}], **fields), ids, start, position)


def text_of(ids: list[int]) -> str:
    """What ids say when nothing more comes."""
    return b"".join(oracle.token_bytes()[i] for i in ids).decode("utf-8", "replace")


async def check_said(
    site: Site, client: Client, kind: str, turn: Turn, text: str
) -> tuple[list[str], Event]:
    """The turn says this text, wherever one looks; returns its deltas and the terminal."""
    said = await client.play(turn.frame, patience_s=PATIENCE_S)
    await check_agreement_everywhere(site, said)
    item = next(item for item in reported_items(said)[turn.position :] if item["type"] == kind)
    assert value_of(item) == text
    return deltas_of(said).get(item["id"], []), said[-1]["response"]


@on_both_links
@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES)
def test_unicode_byte_by_byte_is_told_the_same_everywhere(data: bytes, stage: str) -> None:
    text = data.decode("utf-8", "replace")

    async def main(site: Site) -> None:
        client = await site.client()
        for kind in KINDS:
            turn = turn_of(kind, byte_ids(data))
            deltas, _ = await check_said(site, client, kind, turn, text)
            if data not in STRAY.values():
                assert deltas == list(text), "a character is told when its last byte is there"

    run(main, stage)


@pytest.mark.parametrize("size", [2, 3, 5, 255])
def test_unicode_in_steps_across_characters(size: int) -> None:
    async def main(site: Site) -> None:
        client = await site.client()
        for kind in KINDS:
            for data in BYTES.values():
                text = data.decode("utf-8", "replace")
                await check_said(site, client, kind, turn_of(kind, byte_ids(data)), text)

    run(main, make_engine=in_steps(size))


@on_both_links
@pytest.mark.parametrize("name", ["emoji", "family of joined emoji", "Devanagari", "every byte"])
def test_unicode_cut_at_every_byte_ends_as_it_was_told(name: str, stage: str) -> None:
    data = BYTES[name]

    async def main(site: Site) -> None:
        client = await site.client()
        for kind in KINDS:
            start = turn_of(kind, byte_ids(data)).start
            for count in range(0, len(data), 1 + len(data) // 16):
                turn = turn_of(kind, byte_ids(data), max_output_tokens=start + count)
                text = data[:count].decode("utf-8", "replace")
                deltas, ended = await check_said(site, client, kind, turn, text)
                whole = data[:count].decode("utf-8", "ignore")
                if name != "every byte":
                    assert [each for each in deltas if each != "\ufffd"] == list(whole)
                assert ended["incomplete_details"] == {"reason": "max_output_tokens"}
                assert ended["output"][-1]["status"] == "incomplete"

    run(main, stage)


def failing_once(place: int) -> Way:
    """The engine fails before the id at `place`, in a way that a retry helps."""
    fault = Fault("overloaded", is_retryable=True)

    def fail(engine: Engine, request: GenRequest, sink: Sink) -> Generation:
        samples = (part.ids for part in request.script.parts if isinstance(part, Sample))
        script = failing_at([*chain.from_iterable(samples)], place, fault)
        return saying(script)(engine, request, sink)

    return fail


@pytest.mark.parametrize("name", ["emoji", "skin tone and flag", "unfinished emoji before text"])
def test_unicode_retry_inside_a_character_goes_on_within_it(name: str) -> None:
    data = BYTES[name]
    ways: list[Way] = []

    async def main(site: Site) -> None:
        client = await site.client()
        for kind in KINDS:
            turn = turn_of(kind, byte_ids(data))
            for place in range(turn.start, turn.start + len(turn.ids) + 1):
                ways.append(failing_once(place))
                text = data.decode("utf-8", "replace")
                await check_said(site, client, kind, turn, text)
                assert not ways, "the first attempt failed"

    run(main, make_engine=breaking(ways))


@on_both_links
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_unicode_of_the_client_reaches_the_model_and_comes_back(text: str, stage: str) -> None:
    requests: list[GenRequest] = []

    async def main(site: Site) -> None:
        client = await site.client()
        done = (await client.ask(create([SHELL], [SHELL], input=text, instructions=text)))[-1]
        for answer in (text, [{"type": "input_text", "text": text}]):
            (call_id,) = pending_of(done["response"])
            done = (await client.ask(append(output(call_id, answer), user(text))))[-1]
        prompts = [vocabulary().decode(request.ids) for request in requests]
        assert [prompt.count(text) >= 2 for prompt in prompts] == [True] * 3

        await client.ask(create([SHELL], metadata={text: text}))
        await client.ask(append(user(text)))
        (ended,) = await client.ask({"type": "response.cancel"})
        assert ended["response"]["metadata"] == {text: text}
        assert [item["content"] for item in ended["response"]["unconsumed_input"]] == [text]

    run(main, stage, noting(requests))


# -- any text, any tokens, any steps, any cut ------------------------------------------------------

PIECES = st.one_of(
    st.text(max_size=8).map(str.encode),
    st.sampled_from([*BYTES.values()]).map(lambda data: data[:40]),
    st.binary(max_size=5),
)
TOKENS = st.tuples(PIECES, st.booleans()).map(lambda drawn: tokens_of(*drawn))


def tokens_of(data: bytes, is_whole: bool) -> list[int]:
    """As the vocabulary would write a text, or byte by byte."""
    try:
        return vocabulary().encode(data.decode()) if is_whole else byte_ids(data)
    except UnicodeDecodeError:
        return byte_ids(data)


ENGINES = st.builds(
    lambda drafts, acceptance, step_ms: in_steps_of(
        replace(INSTANT, draft_count=drafts, acceptance_hard=acceptance, step_ms=step_ms)
    ),
    st.integers(0, 12),
    st.floats(0, 1),
    st.sampled_from([0.0, 1.0]),
)


def check_any(
    kind: str, ids: list[int], cut: int | None, seed: int, engine: MakeEngine, stage: str
) -> None:
    whole = turn_of(kind, ids)
    limit = {} if cut is None else {"max_output_tokens": whole.start + min(cut, len(ids))}
    turn = turn_of(kind, ids, simulation={"seed": seed}, **limit)

    async def main(site: Site) -> None:
        client = await site.client()
        _, ended = await check_said(site, client, kind, turn, text_of(ids[:cut]))
        assert ended["status"] == ("completed" if cut is None else "incomplete")

    run(main, stage, engine)


ANY = {
    "kind": st.sampled_from(KINDS),
    "ids": st.lists(TOKENS, max_size=6).map(lambda parts: [*chain.from_iterable(parts)]),
    "cut": st.none() | st.integers(0, 60),
    "seed": st.integers(0, 1_000),
    "engine": ENGINES,
}


@settings(max_examples=100)
@given(**ANY)
def test_unicode_any_turn_is_told_the_same(**drawn: Any) -> None:
    check_any(**drawn, stage="memory")


@settings(max_examples=20)
@given(**ANY)
def test_unicode_any_turn_is_told_the_same_behind_a_socket(**drawn: Any) -> None:
    check_any(**drawn, stage="websocket")
