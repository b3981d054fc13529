"""A server in a test's own hand: it reads what a client sends and says what the test wants."""

from __future__ import annotations

from typing import Any

import msgspec

from agentloop.link.api import Link

RESPONSE_ID = "resp_1"
USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 15,
}


class FakeServer:
    """One end of a memory link."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def read(self, message_type: str) -> dict[str, Any]:
        """The client's next message, which must be of this type."""
        message: dict[str, Any] = msgspec.json.decode(await self.link.recv())
        assert message["type"] == message_type, message
        return message

    def say(self, event_type: str, **fields: Any) -> None:
        self.link.send([msgspec.json.encode({"type": event_type, **fields})])

    def created(self) -> None:
        self.say("response.created", response={"id": RESPONSE_ID, "status": "in_progress"})

    def item(self, index: int, **item: Any) -> None:
        self.say("response.output_item.added", output_index=index, item=item)
        self.say("response.output_item.done", output_index=index, item=item)

    def call(self, index: int, call_id: str, name: str = "tool", arguments: str = "{}") -> None:
        self.item(index, type="function_call", call_id=call_id, name=name, arguments=arguments)

    def output(self, index: int, call_id: str, output: str) -> None:
        self.item(index, type="function_call_output", call_id=call_id, output=output)

    def search(self, index: int) -> None:
        action = {"type": "search", "query": "slug"}
        self.item(index, type="web_search_call", id=f"ws_{index}", action=action)

    def message(self, index: int, text: str) -> None:
        content = [{"type": "output_text", "text": text}]
        self.item(index, type="message", role="assistant", content=content)

    def suspended(self, *call_ids: str) -> None:
        pending = [{"call_id": call_id, "name": "tool"} for call_id in call_ids]
        self._done("suspended", pending)

    def idle(self) -> None:
        self._done("idle", [])

    def _done(self, state: str, pending: list[dict[str, str]]) -> None:
        response = {
            "id": RESPONSE_ID, "status": "in_progress", "state": state,
            "pending_tool_calls": pending, "usage": USAGE, "usage_total": USAGE,
        }  # fmt: skip
        self.say("response.done", response=response)

    def end(self, status: str = "completed", **fields: Any) -> None:
        kind = "incomplete" if status == "cancelled" else status
        self.say(f"response.{kind}", response={"id": RESPONSE_ID, "status": status, **fields})
