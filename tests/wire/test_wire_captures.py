"""Frames that real clients have sent decode here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentloop.errors import ProtocolError
from agentloop.wire import codec
from agentloop.wire.items import UnknownItem
from agentloop.wire.requests import Append, Create

pytestmark = pytest.mark.traces

FILES = [
    "codex-0.107.0-append-session",
    "codex-0.171.0-previous-response-not-found",
    "codex-0.171.0-socket-drop",
    "codex-0.171.0-sse-fallback",
    "codex-0.171.0-ws-tool-turn",
    "openai-agents-js-and-ai-sdk-ws",
    "openai-agents-python-0.24.0-response-inject",
    "openai-agents-python-0.24.0-ws",
    "openai-python-3.57.0",
]


def lines_of(shared: Path, name: str) -> list[dict[str, Any]]:
    text = (shared / "captures" / f"{name}.jsonl").read_bytes()
    return [msgspec.json.decode(line) for line in text.splitlines()]


def frames_of(shared: Path, name: str) -> list[bytes]:
    """What the client sent as whole frames, encoded again."""
    lines = lines_of(shared, name)
    sent = [line["msg"] for line in lines if line.get("kind") == "ws_recv"]
    for message in sent:
        if isinstance(message.get("tools"), str):
            del message["tools"]  # the capture says only how many there were
    return [msgspec.json.encode(message) for message in sent]


def test_every_capture_is_read(shared: Path) -> None:
    assert {path.stem for path in (shared / "captures").glob("*.jsonl")} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_captured_frames_decode(shared: Path, name: str) -> None:
    for frame in frames_of(shared, name):
        message_type = msgspec.json.decode(frame)["type"]
        if message_type == "response.inject":
            continue
        message = codec.decode_message(frame)
        assert message_type in codec.MESSAGE_TYPES
        assert isinstance(message, Create | Append)
        items = codec.decode_items(message.input)
        sent = msgspec.json.decode(message.input)
        assert len(items) == (1 if isinstance(sent, str) else len(sent))
        for item, raw in zip(items, sent, strict=False):
            if not isinstance(item, UnknownItem) and isinstance(raw, dict):
                told = msgspec.to_builtins(item)
                assert told["type"] == raw.get("type", "message")
                assert {key: raw.get(key) for key in told if key in raw} == {
                    key: told[key] for key in told if key in raw
                }
        for tool in message.tools if isinstance(message, Create) else []:
            codec.decode_tool(tool, "tools[0]")


def test_captured_appends_have_the_shape_of_ours(shared: Path) -> None:
    """That capture keeps a frame's keys and its items' heads only."""
    sent = [line["in"] for line in lines_of(shared, FILES[0]) if "in" in line]
    appends = [message for message in sent if message["type"] == "response.append"]
    assert appends
    for message in appends:
        assert set(message["keys"]) - {"type"} <= set(Append.__struct_fields__)
        raw = msgspec.Raw(msgspec.json.encode(message["items"]))
        assert len(codec.decode_items(raw)) == len(message["items"])


def test_captured_frames_cut_anywhere_are_refused(shared: Path) -> None:
    for name in FILES:
        for frame in frames_of(shared, name)[:2]:
            for end in range(0, len(frame), max(len(frame) // 20, 1)):
                with pytest.raises(ProtocolError):
                    codec.decode_message(frame[:end])
