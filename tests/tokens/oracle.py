"""openai-harmony, without a network, as the judge of our rendering, and histories to judge.

The vocabulary file that it wants is the one that bpe-openai carries, unpacked once into the folder
for temporary files.
"""

from __future__ import annotations

import base64
import gzip
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from openai_harmony import (  # type: ignore[import-untyped]
    Author,
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    HarmonyEncodingName,
    ReasoningEffort,
    RenderConversationConfig,
    Role,
    StreamableParser,
    SystemContent,
    ToolDescription,
    load_harmony_encoding,
)
from openai_harmony import Message as HarmonyMessage

from agentloop.wire.items import (
    AnyItem,
    FunctionCall,
    FunctionCallOutput,
    FunctionTool,
    Message,
    Reasoning,
    ReasoningText,
    text_of,
)

if TYPE_CHECKING:
    from agentloop.tokens.render import Head

FOLDER = Path(tempfile.gettempdir()) / "agentloop-o200k-base"


@cache
def vocabulary_file() -> Path:
    target = FOLDER / "o200k_base.tiktoken"
    if not target.exists():
        package = find_spec("bpe_openai")  # not imported: that takes a second
        assert package is not None
        assert package.origin is not None
        source = Path(package.origin).parent / "data" / "o200k_base.tiktoken.gz"
        FOLDER.mkdir(exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        partial.write_bytes(gzip.decompress(source.read_bytes()))
        partial.replace(target)
    return target


@cache
def token_bytes() -> dict[int, bytes]:
    """The bytes of each ordinary id, as the file says."""
    pairs = (line.split() for line in vocabulary_file().read_bytes().splitlines())
    return {int(token_id): base64.b64decode(text) for text, token_id in pairs}


@cache
def encoding() -> HarmonyEncoding:
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(vocabulary_file().parent)
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def rendered(head: Head, items: Sequence[AnyItem]) -> list[int]:
    """The prompt for the next turn, with tools that the oracle can show."""
    messages = [*_head(head), *_history(items)]
    return list(
        encoding().render_conversation_for_completion(
            Conversation.from_messages(messages),
            Role.ASSISTANT,
            RenderConversationConfig(auto_drop_analysis=False),
        )
    )


def rendered_items(items: Sequence[AnyItem]) -> list[int]:
    return list(
        encoding().render_conversation(
            Conversation.from_messages(_history(items)),
            RenderConversationConfig(auto_drop_analysis=False),
        )
    )


def heard(ids: Sequence[int]) -> list[tuple[str, str | None]]:
    """Text and recipient of each message of a sampled turn."""
    parser = StreamableParser(encoding(), Role.ASSISTANT)
    for token_id in ids:
        parser.process(token_id)
    return [(message.content[0].text, message.recipient) for message in parser.messages]


def _head(head: Head) -> list[HarmonyMessage]:
    system = (
        SystemContent.new()
        .with_conversation_start_date(head.date)
        .with_reasoning_effort(ReasoningEffort(head.reasoning_effort.capitalize()))
    )
    messages = [HarmonyMessage.from_role_and_content(Role.SYSTEM, system)]
    developer = DeveloperContent.new()
    if head.instructions:
        developer = developer.with_instructions(head.instructions)
    if head.tools:
        tools = [tool for tool in head.tools if isinstance(tool, FunctionTool)]
        assert len(tools) == len(head.tools), "the oracle shows function tools only"
        developer = developer.with_function_tools(
            [ToolDescription.new(t.name, t.description or "", t.parameters) for t in tools]
        )
    if head.instructions or head.tools:
        messages.append(HarmonyMessage.from_role_and_content(Role.DEVELOPER, developer))
    return messages


def _history(items: Sequence[AnyItem]) -> list[HarmonyMessage]:
    names = {item.call_id: item.name for item in items if isinstance(item, FunctionCall)}
    messages = (_message(item, items[index + 1 :], names) for index, item in enumerate(items))
    return [message for message in messages if message is not None]


def _message(
    item: AnyItem, later: Sequence[AnyItem], names: dict[str, str]
) -> HarmonyMessage | None:
    say = HarmonyMessage.from_role_and_content
    match item:
        case Message(role="assistant"):
            channel = "commentary" if _calls_first(later) else "final"
            return say(Role.ASSISTANT, text_of(item.content)).with_channel(channel)
        case Message():
            return say(Role(item.role), text_of(item.content))
        case Reasoning():
            text = "".join(part.text for part in item.content or item.summary or ())
            return say(Role.ASSISTANT, text).with_channel("analysis") if text else None
        case FunctionCall():
            message = say(Role.ASSISTANT, item.arguments).with_channel("commentary")
            message = message.with_recipient(f"functions.{item.name}")
            return message.with_content_type("<|constrain|>json")
        case FunctionCallOutput():
            tool = Author.new(Role.TOOL, f"functions.{names[item.call_id]}")
            message = HarmonyMessage.from_author_and_content(tool, text_of(item.output))
            return message.with_channel("commentary").with_recipient("assistant")
        case _:
            raise AssertionError(f"the oracle does not know {item}")


def _calls_first(later: Sequence[AnyItem]) -> bool:
    """Whether a call comes before the next item that the model did not write."""
    for item in later:
        if isinstance(item, FunctionCall):
            return True
        if isinstance(item, FunctionCallOutput) or (
            isinstance(item, Message) and item.role != "assistant"
        ):
            return False
    return False


SPELLINGS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>")
PIECES = (*SPELLINGS, "👩‍👩‍👧", "ไทย", "\u2028", "\x00", "é", "  ", "\n\n", "}", "assistant to=")
names = st.text("abcXYZ019_-", min_size=1, max_size=12)
texts = st.one_of(
    st.text(max_size=40),
    st.lists(st.one_of(st.text(max_size=6), st.sampled_from(PIECES)), max_size=6).map("".join),
)


@st.composite
def histories(draw: st.DrawFn) -> list[AnyItem]:
    """Users, developers, reasoning, messages, parallel calls and all their outputs."""
    items: list[AnyItem] = []
    for _ in range(draw(st.integers(0, 4))):
        role = draw(st.sampled_from(("user", "user", "developer", "system")))
        items.append(Message(role=role, content=draw(texts)))
        items += draw(st.lists(_reasoning | _spoken, max_size=2))
        calls = [
            FunctionCall(call_id=f"call_{len(items)}_{n}", name=name, arguments=draw(texts))
            for n, name in enumerate(draw(st.lists(names, max_size=3)))
        ]
        items += calls
        items += draw(st.lists(_spoken, max_size=1))
        items += [FunctionCallOutput(call_id=call.call_id, output=draw(texts)) for call in calls]
    return items


_reasoning = st.builds(
    lambda text, is_summary: (
        Reasoning(summary=[ReasoningText(type="summary_text", text=text)])
        if is_summary
        else Reasoning(content=[ReasoningText(text=text)])
    ),
    texts,
    st.booleans(),
)
_spoken = st.builds(lambda text: Message(role="assistant", content=text), texts)
