"""The breakdown: where each turn's time went.

A turn lasts from the receive time of the frame that made it runnable to the hand-off of its last
frame. Its spans are disjoint leaves; phases partition its wall time and the wait after it:

    received ─ api ─ submit ─ inference ─ finish ─ api ─ hand-off ─ client ─ next received

*Network* is zero where the server measures: only a client can see it. Tool time counts as
*client*, also where the server runs the tool. *Inference* lasts from submit to finish, waits before
a retry included; what is parsed and said meanwhile hides in it. It is modelled where the engine is
simulated.
"""

from __future__ import annotations

from msgspec import Struct

HOSTED_TOOLS = "hosted_tools"  # the span of tools that the server runs
_US = 1e6


class Span(Struct, gc=False):
    """One named piece; microseconds since the turn became runnable."""

    name: str
    start_us: float
    duration_us: float


class Phases(Struct, gc=False):
    """Milliseconds; their sum is the turn's wall time and the wait after it."""

    inference_ms: float = 0.0
    api_ms: float = 0.0
    network_ms: float = 0.0
    client_ms: float = 0.0


class TurnBreakdown(Struct):
    """One turn."""

    turn: int
    phases: Phases
    stages: list[Span]
    bytes_up: int = 0
    bytes_down: int = 0


class Timeline(Struct):
    """What `GET /v1/responses/{id}/timeline` answers."""

    response_id: str
    design: str
    turns: list[TurnBreakdown]


class Breakdown:
    """Records one Response's turns. All times come in as seconds of the injected clock."""

    def __init__(self, received_s: float, byte_count: int = 0) -> None:
        self.turns: list[TurnBreakdown] = []
        self._received_s = received_s
        self._runnable_s = received_s
        self._stopped_s: float | None = None
        self._bytes_up = byte_count
        self._bytes_down = 0

    def receive(self, received_s: float, byte_count: int) -> None:
        """A frame for this Response came in."""
        self._received_s = received_s
        self._bytes_up += byte_count

    def send(self, byte_count: int) -> None:
        """Frames of this Response were handed to a link."""
        self._bytes_down += byte_count

    def start_turn(self, turn: int, now_s: float) -> None:
        """A turn starts: it was runnable since the frame that ended the wait, if there was one."""
        self._runnable_s = now_s
        if not self.turns:
            self._runnable_s = self._received_s
        elif self._stopped_s is not None:
            self._runnable_s = max(self._received_s, self._stopped_s)
            waited_s = self._runnable_s - self._stopped_s
            self.turns[-1].phases.client_ms += waited_s * 1e3
        self._stopped_s = None
        self.turns.append(TurnBreakdown(turn, Phases(), []))
        self.add("admit", self._runnable_s, now_s)

    def add(self, name: str, start_s: float, end_s: float) -> None:
        """A span of the current turn."""
        start_us = (start_s - self._runnable_s) * _US
        self.turns[-1].stages.append(Span(name, start_us, (end_s - start_s) * _US))

    def stop(self, now_s: float) -> None:
        """The turn's last frame was handed off; what follows is the client's time."""
        turn = self.turns[-1]
        spent_ms = dict.fromkeys(("inference", "backoff", HOSTED_TOOLS), 0.0)
        for span in turn.stages:
            if span.name in spent_ms:
                spent_ms[span.name] += span.duration_us / 1e3
        wall_ms = (now_s - self._runnable_s) * 1e3
        turn.phases.inference_ms = spent_ms["inference"] + spent_ms["backoff"]
        turn.phases.client_ms = spent_ms[HOSTED_TOOLS]
        turn.phases.api_ms = wall_ms - sum(spent_ms.values())
        turn.bytes_up, self._bytes_up = self._bytes_up, 0
        turn.bytes_down, self._bytes_down = self._bytes_down, 0
        self._stopped_s = now_s
