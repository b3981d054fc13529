"""Progress: a session's events, folded into what an agent reports. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.agent.api import CallReport, Observer, Outcome, Stretch
from agentloop.drive.event import (
    CREATED,
    ITEM_ADDED,
    ITEM_DONE,
    REASONING_DELTAS,
    TEXT_DELTA,
    ResponseShown,
    ServerEvent,
)
from agentloop.wire import codec
from agentloop.wire.items import (
    AnyItem,
    CallItem,
    FunctionCall,
    Message,
    OutputItem,
    WebSearchCall,
    text_of,
)

if TYPE_CHECKING:
    from agentloop.drive.api import Stop


class Progress:
    """Folds events and tells the observer.

    The wire does not mark where a turn begins. One does when the model speaks for the first time
    after a stop or after a tool's output; and after a search, whose result is no item, when what
    comes is not another call.

    Args:
        is_local: the client runs the function calls; a search is always the server's.
    """

    def __init__(self, observer: Observer, *, is_local: bool) -> None:
        self.outcome = Outcome(
            response_id=None,
            status="in_progress",
            reason="",
            turns=0,
            calls=[],
            stretches=[],
            text="",
            usage=None,
            item_count=0,
        )
        self._observer = observer
        self._is_local = is_local
        self._calls: dict[str, CallReport] = {}
        self._is_speaking = False
        self._has_searched = False
        self._stretch = Stretch(turns=0, wait_s=0.0)
        self._sent_s = 0.0

    # -- what the client does ------------------------------------------------------------------

    def send(self, now_s: float, item_count: int) -> None:
        """The client sent these items, and the loop goes on."""
        self._sent_s = now_s
        self._stretch = Stretch(turns=0, wait_s=0.0)
        self.outcome.item_count += item_count

    def end_call(self, call_id: str, output: str, now_s: float) -> None:
        """A tool has answered."""
        call = self._calls.get(call_id)
        if call is not None and call.ended_s is None:
            call.output, call.ended_s = output, now_s
            self._observer.end_call(call)

    # -- what the server says ------------------------------------------------------------------

    def feed(self, event: ServerEvent, now_s: float) -> AnyItem | None:
        """Fold one event; the item that it completes, if it does."""
        if event.type == ITEM_ADDED:
            self._open(event.item)
        elif event.type == TEXT_DELTA:
            self._observer.show_text("text", event.delta)
        elif event.type in REASONING_DELTAS:
            self._observer.show_text("reasoning", event.delta)
        elif event.type == ITEM_DONE and (item := event.item) is not None:
            self._close(item, now_s)
            return item
        elif event.type == CREATED and event.response is not None:
            self.outcome.response_id = event.response.id
        return None

    def _open(self, item: AnyItem | None) -> None:
        if isinstance(item, OutputItem):
            self._is_speaking = False
            return
        if self._has_searched and not isinstance(item, CallItem | WebSearchCall):
            self._is_speaking = False
        if not self._is_speaking:
            self._is_speaking = True
            self._has_searched = False
            self._stretch.turns += 1
            self.outcome.turns += 1
            self._observer.start_turn(self.outcome.turns)

    def _close(self, item: AnyItem, now_s: float) -> None:
        self.outcome.item_count += 1
        if isinstance(item, CallItem):
            arguments = item.arguments if isinstance(item, FunctionCall) else item.input
            self._start_call(item.call_id, item.name, arguments, now_s, self._is_local)
        elif isinstance(item, WebSearchCall):
            self._has_searched = True
            action = codec.encode(item.action).decode()
            self._start_call(item.id or "", "web_search", action, now_s, False)
        elif isinstance(item, OutputItem):
            self.end_call(item.call_id, text_of(item.output), now_s)
        elif isinstance(item, Message) and item.role == "assistant":
            self.outcome.text = text_of(item.content)

    def _start_call(
        self, call_id: str, name: str, arguments: str, now_s: float, is_local: bool
    ) -> None:
        call = CallReport(call_id, name, arguments, self.outcome.turns, is_local, now_s)
        self._calls[call_id] = call
        self.outcome.calls.append(call)
        self._observer.start_call(call)

    def stop(self, stop: Stop, received_s: float) -> None:
        """The loop has stopped, with a frame that came at this time."""
        self._is_speaking = False
        self._has_searched = False
        if self._stretch.turns:
            self._stretch.wait_s = received_s - self._sent_s
            self.outcome.stretches.append(self._stretch)
            self._stretch = Stretch(turns=0, wait_s=0.0)
        response = stop.response
        self.outcome.usage = response.usage_total or response.usage or self.outcome.usage
        if stop.is_final:
            self.outcome.status = response.status
            self.outcome.reason = _reason_of(response)


def _reason_of(response: ResponseShown) -> str:
    if response.error is not None:
        return f"{response.error.code}: {response.error.message}"
    if response.incomplete_details is not None:
        return response.incomplete_details.reason
    return "" if response.status == "completed" else response.status
