"""Watches all events of one Response, as a strict client would, and complains at the first wrong
one. It knows the wire only, nothing of the core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

TERMINALS = ("response.completed", "response.incomplete", "response.failed")
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "web_search_call": "ws",
    "function_call_output": "fco",
}
CALLS = ("function_call", "custom_tool_call")

Event = Mapping[str, Any]


class Watch:
    """What a client has heard.

    Attributes:
        items: finished items by output index.
        terminal: the terminal event, once it came.
        announced: ids of the calls that may be answered or run.
    """

    def __init__(self, response_id: str) -> None:
        self.suffix = response_id.partition("_")[2]
        self.count = 0
        self.items: dict[int, Any] = {}
        self.terminal: Event | None = None
        self.announced: list[str] = []
        self.created: Event | None = None
        self._opened: dict[int, str] = {}
        self._texts: dict[int, str] = {}
        self._reported = 0
        self._usage: Counter[str] = Counter()

    def hear(self, event: Event) -> None:
        assert self.terminal is None, f"{event['type']} after the terminal"
        assert event["sequence_number"] == self.count, "the numbers have a gap"
        self.count += 1
        kind = event["type"]
        if kind == "response.output_item.added":
            self._hear_added(event["output_index"], event["item"])
        elif kind == "response.output_item.done":
            self._hear_done(event["output_index"], event["item"])
        elif kind.endswith(".delta"):
            assert event["output_index"] not in self.items, "text of an item that is done"
            assert event["item_id"] == self._opened[event["output_index"]]
            assert event["delta"], "an empty delta"
            self._texts[event["output_index"]] += event["delta"]
        elif kind in ("response.created", "response.in_progress"):
            self._hear_progress(event)
        elif kind == "response.done":
            self._hear_report(event["response"], None)
        elif kind in TERMINALS:
            self.terminal = event
            self._hear_report(event["response"], self._cut_item())

    def _hear_progress(self, event: Event) -> None:
        if self.count == 1:
            self.created = event
        assert self.created is not None, "response.created comes first"
        assert (event["type"] == "response.created") == (self.count == 1), "created comes once"
        assert event["response"] == self.created["response"], "a payload from created alone"

    def _hear_added(self, index: int, item: Any) -> None:
        assert index == len(self._opened), "output indexes have a gap"
        assert len(self.items) == index, "an item opens after the one before is done"
        self._check_ids(index, item)
        self._opened[index] = item["id"]
        self._texts[index] = ""

    def _hear_done(self, index: int, item: Any) -> None:
        assert index not in self.items, "an item is done twice"
        self._check_ids(index, item)
        assert item["id"] == self._opened[index]
        self.items[index] = item
        if item["type"] in CALLS:
            assert item["status"] == "completed", "a cut call has no output_item.done"
            assert item["call_id"] not in self.announced, "a call is announced once"
            self.announced.append(item["call_id"])
        said = said_text(item)
        if said is not None:
            assert self._texts[index] == said, "the deltas joined are the text"

    def _check_ids(self, index: int, item: Any) -> None:
        assert item["id"] == f"{PREFIXES[item['type']]}_{self.suffix}_{index}"
        if item["type"] in CALLS:
            assert item["call_id"] == f"call_{self.suffix}_{index}"

    def _cut_item(self) -> int | None:
        """The index of the item that was opened and never done."""
        return max(self._opened) if len(self._opened) > len(self.items) else None

    def _hear_report(self, response: Any, cut: int | None) -> None:
        """`done` and terminals report what was not reported yet, and only that."""
        items = [self.items[index] for index in range(self._reported, len(self.items))]
        if cut is not None:
            (cut_item,) = response["output"][len(items) :]
            assert cut_item["status"] == "incomplete"
            assert cut_item["type"] in (*CALLS, "web_search_call")
            self._check_ids(cut, cut_item)
        assert response["output"][: len(items)] == items
        assert len(response["output"]) == len(items) + (cut is not None)
        self._reported = len(self.items)
        usage = flat_usage(response["usage"])
        assert usage["total"] == usage["input"] + usage["output"]
        assert usage["cached"] <= usage["input"]
        assert usage["reasoning"] <= usage["output"]
        self._usage.update(usage)
        assert flat_usage(response["usage_total"]) == self._usage, "usage_total is the sum"


def flat_usage(usage: Any) -> Counter[str]:
    """The five numbers of a usage; a zero counts as absent, as in any Counter."""
    return Counter(
        input=usage["input_tokens"],
        cached=usage["input_tokens_details"]["cached_tokens"],
        output=usage["output_tokens"],
        reasoning=usage["output_tokens_details"]["reasoning_tokens"],
        total=usage["total_tokens"],
    )


def said_text(item: Any) -> str | None:
    """What the deltas of an item must add up to; None where an item has no deltas."""
    match item["type"]:
        case "message" | "reasoning":
            return "".join(part["text"] for part in item["content"])
        case "function_call":
            return str(item["arguments"])
        case "custom_tool_call":
            return str(item["input"])
        case _:
            return None
