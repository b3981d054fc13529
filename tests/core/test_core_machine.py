"""Random lives of a Response: commands in any order in which the server's shell could give them.

`tests.core.core_life` checks each command, its events, and what must hold after it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentloop.tokens.render import Said, SaidReasoning, SaidText
from tests.core.core_kit import lookup, make_config, patch, search, shell
from tests.core.core_life import Life
from tests.core.core_model import Given

TEXTS = st.sampled_from(["a", "two words", "", "naïve 🧑‍🚒 café", "<|end|>"])
SAID: st.SearchStrategy[Said] = st.sampled_from(
    [
        SaidText("fine"), shell(), SaidText("🦜 <|call|>"), SaidText(""), shell("pwd"), lookup(),
        SaidReasoning("ще 🦜 думаю"), shell("🦜"), patch(), search(), patch(""), shell(),
        lookup("b"),
    ]
)  # fmt: skip
TURNS = st.lists(SAID, max_size=4)
KEYS = st.sampled_from([None, None, "k1", "k2", "k3"])
OPTIONS = st.fixed_dictionaries(
    {
        "parks": st.sampled_from([True] * 7 + [False]),
        "final": st.sampled_from([None, "hold", "hold", "complete"]),
        "detach_ttl_s": st.sampled_from([0.0, 60.0, 60.0]),
        "on_tool_timeout": st.sampled_from(["incomplete", "result", "result"]),
        "says_done": st.sampled_from([True] * 5 + [False]),
    }
)
# From the harmless to the deadly: a failing example shrinks towards the first ones.
TURN_DISTURBANCES = ["keep_alive", "retry", "retry", "retry", "cut_turn", "fail"]
DISTURBANCES = [
    "attach", "lose_link", "close", "receive_create", "cancel", "time_out_detached"
]  # fmt: skip


class ResponseLives(RuleBasedStateMachine):
    """One Response after another; a finished one may be the parent of the next."""

    life: Life

    @initialize(options=OPTIONS, texts=st.lists(TEXTS, max_size=2))
    def first_life(self, options: dict[str, Any], texts: list[str]) -> None:
        self.life = Life(make_config(**options), texts)

    def is_at_work(self) -> bool:
        return self.life.model.state in ("created", "sampling")

    # -- the loop ------------------------------------------------------------------------------

    @precondition(is_at_work)
    @rule(said=TURNS, sizes=st.lists(st.sampled_from([1, 3, 10, 40]), max_size=6), text=TEXTS)
    def work(self, said: list[Said], sizes: list[int], text: str) -> None:
        """The loop's next deed."""
        life = self.life
        match life.phase:
            case "ready":
                life.start_turn(said)
                life.sample(sizes)
            case "turn" if life.turn.rest and sizes:
                life.sample(sizes)
            case "turn":
                life.end_turn(life.turn.input_tokens // 2)
            case _:
                life.finish_turn(text)

    @precondition(is_at_work)
    @rule(said=TURNS, text=TEXTS)
    def work_until_it_rests(self, said: list[Said], text: str) -> None:
        """The loop's deeds to the end of the turn."""
        life = self.life
        if life.phase == "ready":
            life.start_turn(said)
        if life.phase == "turn":
            life.end_turn(life.turn.input_tokens)
        while life.phase == "after" and life.model.is_open:
            life.finish_turn(text)

    @precondition(lambda self: self.life.model.state == "sampling" and self.life.phase == "turn")
    @rule(what=st.sampled_from(TURN_DISTURBANCES))
    def disturb_turn(self, what: str) -> None:
        getattr(self.life, what)()

    # -- the client ----------------------------------------------------------------------------

    @precondition(lambda self: self.life.model.pending())
    @rule(text=TEXTS, count=st.integers(1, 4), is_reversed=st.booleans(), key=KEYS)
    def answer(self, text: str, count: int, is_reversed: bool, key: str | None) -> None:
        """Some pending calls, or all, in either order, perhaps while the turn runs."""
        pending = self.life.model.pending()[:: -1 if is_reversed else 1]
        self.life.append([Given(call.call_id, text) for call in pending[:count]], key)

    @precondition(lambda self: self.life.model.is_open)
    @rule(texts=st.lists(TEXTS, max_size=2), key=KEYS)
    def say(self, texts: list[str], key: str | None) -> None:
        """Messages, or an empty append."""
        self.life.append([Given(None, text) for text in texts], key)

    @precondition(lambda self: self.life.model.known)
    @rule(data=st.data(), key=KEYS)
    def append_anything(self, data: st.DataObject, key: str | None) -> None:
        """Repeats, conflicts, unknown and hosted calls, messages between outputs."""
        known = self.life.model.known
        repeats = [Given(c.call_id, c.answer) for c in known.values() if c.answer is not None]
        others = [Given(call_id, text) for call_id in known for text in ("a", "b")]
        choices = [Given(None, "m"), *repeats, *repeats, *others, Given("call_unknown", "a")]
        self.life.append(data.draw(st.lists(st.sampled_from(choices), max_size=3)), key)

    @precondition(lambda self: self.life.model.keys)
    @rule(data=st.data())
    def use_a_key_again(self, data: st.DataObject) -> None:
        """The same payload mostly; the model remembers it as text."""
        key = data.draw(st.sampled_from(sorted(self.life.model.keys)))
        self.life.append(data.draw(st.sampled_from([self.life.given[key], []])), key)

    # -- the link and the clock ----------------------------------------------------------------

    @precondition(lambda self: self.life.model.is_open)
    @rule(what=st.sampled_from(DISTURBANCES), is_sure=st.booleans())
    def disturb(self, what: str, is_sure: bool) -> None:
        life = self.life
        is_possible = {
            "lose_link": life.is_linked,
            "close": not life.model.must_yield,
            "receive_create": not life.model.closes,
            "cancel": is_sure,
            "time_out_detached": not life.is_linked and is_sure,
        }
        if is_possible.get(what, True):
            getattr(life, what)()

    @precondition(lambda self: self.life.model.state == "suspended")
    @rule()
    def time_out_calls(self) -> None:
        self.life.time_out_calls()

    # -- after the terminal --------------------------------------------------------------------

    @precondition(lambda self: not self.life.model.is_open)
    @rule(options=OPTIONS, texts=st.lists(TEXTS, max_size=2), is_child=st.booleans())
    def next_life(self, options: dict[str, Any], texts: list[str], is_child: bool) -> None:
        last = self.life
        last.check_commands_after_the_end()
        last.append([Given(None, "too late")])
        last.check_records()
        parents = [last.response.context] * is_child
        self.life = Life(make_config(**options), texts, *parents)

    @invariant()
    def state_holds(self) -> None:
        if hasattr(self, "life"):
            self.life.check_state()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.check_records()


ResponseLives.TestCase.settings = settings(max_examples=400, stateful_step_count=40)
TestResponseLives = ResponseLives.TestCase
