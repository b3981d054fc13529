"""A second, small reading of the protocol's rules of state, to hold the core against.

It keeps texts, not tokens, and knows nothing of records or events: what may be done, what is
pending, what the next prompt says, what an append must answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agentloop.tokens.render import Said, SaidCall, SaidReasoning, render_turn
from agentloop.tokens.vocabulary import MESSAGE
from tests.core.core_kit import spell

OPEN = ("created", "sampling", "suspended", "idle")
TURN_START = "<|start|>assistant"


class Given(NamedTuple):
    """One item of an append: an output of a call, or a message where `call_id` is None."""

    call_id: str | None
    text: str


@dataclass
class ModelCall:
    call_id: str
    said: SaidCall
    epoch: int
    is_hosted: bool
    answer: str | None = None

    @property
    def author(self) -> str:
        prefix = {"function_call": "functions.", "custom_tool_call": "custom.", "hosted_call": ""}
        return prefix[self.said.kind] + self.said.name


@dataclass
class ModelTurn:
    """What the model is about to say, and how far it got."""

    said: list[Said]
    first_index: int
    input_tokens: int
    fed: int = 0
    has_append: bool = False
    ids: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = render_turn(self.said)

    @property
    def flat(self) -> list[int]:
        return [token_id for part in self.ids for token_id in part]

    @property
    def rest(self) -> list[int]:
        return self.flat[self.fed :]

    def whole_count(self) -> int:
        """How many parts are whole."""
        return sum(sum(map(len, self.ids[: i + 1])) <= self.fed for i in range(len(self.ids)))

    def open_part(self) -> Said | None:
        """The part that is begun, its header whole, and not ended."""
        whole = self.whole_count()
        begun = self.flat[sum(map(len, self.ids[:whole])) : self.fed]
        return self.said[whole] if MESSAGE in begun else None

    def reasoning_tokens(self) -> int:
        count, left = 0, self.fed
        for part, ids in zip(self.said, self.ids, strict=True):
            seen = ids[: max(left, 0)]
            left -= len(ids)
            if isinstance(part, SaidReasoning) and MESSAGE in seen:
                text = seen[seen.index(MESSAGE) + 1 :]
                count += len(text) - (len(seen) == len(ids))
        return count


Verdict = Literal[
    "accepted", "repeat", "key", "ended", "hands_back", "unknown", "resolved", "pending"
]  # fmt: skip


class Model:
    """The rules.

    Attributes:
        prompt: the text of everything that the model has read or said, without its head.
        calls: those of the current turn; `known` holds all ever announced.
        item_count: output items so far.
    """

    def __init__(self, *, parks: bool, final: str | None, parent: str) -> None:
        self.parks = parks
        self.completes = final == "complete"
        self.state = "created"
        self.epoch = 1
        self.prompt = parent
        self.turn: ModelTurn | None = None
        self.calls: list[ModelCall] = []
        self.known: dict[str, ModelCall] = {}
        self.waiting: list[str] = []
        self.keys: dict[str, tuple[bytes, bytes]] = {}
        self.item_count = 0
        self.must_yield = False
        self.closes: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    def pending(self) -> list[ModelCall]:
        """Announced client calls without an answer; after the terminal there are none."""
        if not self.is_open:
            return []
        return [call for call in self.calls if call.answer is None and not call.is_hosted]

    # -- the loop ------------------------------------------------------------------------------

    def start_turn(self, said: Sequence[Said], head_tokens: int) -> None:
        """Outputs in call order, messages after them."""
        for call in sorted(self.calls, key=lambda call: call.said.kind != "hosted_call"):
            assert call.answer is not None, "a turn begins when every call is answered"
            self.prompt += (
                f"<|start|>{call.author} to=assistant<|channel|>commentary"
                f"<|message|>{call.answer}<|end|>"
            )
        self.calls = []
        self.read(self.waiting)
        self.waiting = []
        self.turn = ModelTurn(list(said), self.item_count, head_tokens)
        self.state = "sampling"

    def read(self, texts: Sequence[str]) -> None:
        """User messages enter the prompt."""
        for text in texts:
            self.prompt += f"<|start|>user<|message|>{text}<|end|>"

    def sample(self, count: int, suffix: str, hosted: frozenset[str]) -> None:
        """The model went on; calls that are whole now are announced."""
        assert self.turn is not None
        before = self.turn.whole_count()
        self.turn.fed += count
        for number in range(before, self.turn.whole_count()):
            said = self.turn.said[number]
            if isinstance(said, SaidCall):
                call_id = f"call_{suffix}_{self.turn.first_index + number}"
                call = ModelCall(call_id, said, self.epoch, said.name in hosted)
                self.calls.append(call)
                self.known[call_id] = call
        self.item_count = self.turn.first_index + self.turn.whole_count()

    def end_turn(self) -> None:
        """What was sampled is read again as it was said, the last `return` as an `end`."""
        assert self.turn is not None
        said = spell(self.turn.flat)
        if said:
            self.prompt += TURN_START + said.removesuffix("<|return|>")
            self.prompt += "<|end|>" * said.endswith("<|return|>")

    def goes_on(self) -> str:
        """How the loop stops: the `done` state, a terminal, or nothing at all."""
        assert self.turn is not None
        if self.pending():
            return "suspended" if self.parks else "completed"
        clients = [call for call in self.calls if not call.is_hosted]
        if (self.waiting or self.calls) and not self.must_yield:
            caused = self.turn.has_append and (self.waiting or clients)
            return "continued" if caused else "silent"
        if self.waiting or self.calls:  # for the create that takes over, or is refused
            return "idle"
        return "completed" if self.closes or self.completes else "idle"

    # -- the client ----------------------------------------------------------------------------

    def judge(self, given: Sequence[Given], key: str | None, payload: bytes) -> Verdict:
        """What an append is answered with; the first thing wrong counts."""
        if key in self.keys:
            return "repeat" if self.keys[key][0] == payload else "key"
        if not self.is_open:
            return "ended"
        if not self.parks:
            return "hands_back"
        chosen: dict[str, str] = {}
        for call_id, text in given:
            if call_id is None:
                continue
            call = self.known.get(call_id)
            if call is None or call.is_hosted:
                return "unknown"
            known = call.answer if call.answer is not None else chosen.setdefault(call_id, text)
            if known != text:
                return "resolved"
        return "accepted"

    def accept(self, given: Sequence[Given]) -> None:
        """Apply an append that was judged right."""
        pending = {call.call_id: call for call in self.pending()}
        for call_id, text in given:
            if call_id is None:
                self.waiting.append(text)
            elif call_id in pending:
                pending[call_id].answer = text
        if self.turn is not None:
            self.turn.has_append = True
        has_messages = any(call_id is None for call_id, _ in given)
        resumes = {"suspended": not self.pending(), "idle": has_messages}
        if resumes.get(self.state):
            self.state = "sampling"
            self.turn = None
