"""What a server, a link and a Response take at most, with the constants made small; and rules that
no transcript can show: what HTTP tells, what the model reads, how full the engine is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agentloop.clock import Clock, run_virtual
from agentloop.core.response import MESSAGES_MAX
from agentloop.engine.sim.profiles import INSTANT, PROFILES
from agentloop.link.api import Link
from agentloop.serve.service import Service
from agentloop.serve.waiting import FRAMES_MAX
from agentloop.server.options import ServerOptions
from agentloop.tokens.render import RESULT_PLACEHOLDER
from agentloop.tokens.vocabulary import vocabulary
from tests.conformance.heard import Event
from tests.conformance.runner import hear
from tests.conformance.stages import in_memory
from tests.server import server_kit

CREATE: Event = {"type": "response.create", "model": "sim", "input": "go"}
STALLED: Event = {**CREATE, "simulation": {"turns": [[{"stall_ms": 1_000}, {"text": "a"}]]}}


class Peer:
    """A client that says anything and hears everything."""

    def __init__(self, link: Link, service: Service, clock: Clock) -> None:
        self.service = service
        self.clock = clock
        self._link = link

    async def ask(self, *messages: Event) -> list[Event]:
        """All events that come of these until everybody waits."""
        self._link.send([msgspec.json.encode(message) for message in messages])
        return await hear(self._link)

    async def wait(self, duration_s: float) -> list[Event]:
        """All events that come as time passes."""
        await self.clock.sleep(duration_s)
        return await self.ask()


def run(main: Callable[[Peer], Coroutine[Any, Any, None]], profile: str = "instant") -> None:
    async def watched(clock: Clock) -> None:
        options = ServerOptions(profile=profile, is_reproducible=True)
        async with in_memory(options, {}, clock) as world:
            await main(Peer(await world.open("append"), world.service, clock))

    run_virtual(watched)


def refusals(events: list[Event]) -> list[tuple[int, str]]:
    """Status and code of each error."""
    errors = [event for event in events if event["type"] == "error"]
    return [(error["status"], error["error"]["code"]) for error in errors]


def accepted(events: list[Event]) -> list[str]:
    """The keys of the accepted appends."""
    return [e["event_id"] for e in events if e["type"] == "response.append.accepted"]


def append(size: int = 0, **fields: Any) -> Event:
    """An append of one message of so many characters; without any, of nothing."""
    return {"type": "response.append", "input": "x" * size or [], **fields}


# -- a server --------------------------------------------------------------------------------------


def test_open_responses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentloop.loop.live.LIVE_MAX", 2)

    async def main(peer: Peer) -> None:
        for lane in ("a", "b"):
            assert refusals(await peer.ask({**CREATE, "stream_id": lane})) == []
        assert refusals(await peer.ask(CREATE)) == [(429, "too_many_responses")]
        taken_over = await peer.ask({**CREATE, "stream_id": "a"})
        assert taken_over[-1]["type"] == "response.done", "one takes the place of another"
        await peer.ask({"type": "response.close", "stream_id": "b"})
        assert (await peer.ask(CREATE))[-1]["type"] == "response.done"

    run(main)


def test_input_of_all_responses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentloop.loop.live.LIVE_BYTES_MAX", 10_000)

    async def main(peer: Peer) -> None:
        large = {**CREATE, "input": "x" * 6_000}
        for lane in ("a", "b"):
            assert refusals(await peer.ask({**large, "stream_id": lane})) == []
        assert refusals(await peer.ask(CREATE)) == [(429, "too_many_responses")]
        assert refusals(await peer.ask(append(6_000, stream_id="a"))) == [], "appends go on"
        await peer.ask({"type": "response.close", "stream_id": "a"})
        assert (await peer.ask(CREATE))[-1]["type"] == "response.done"
        await peer.ask({"type": "response.close"}, {"type": "response.close", "stream_id": "b"})
        assert peer.service.live.shared.load.received_bytes == 0

    run(main)


# -- a Response ------------------------------------------------------------------------------------


def test_input_of_a_response_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "agentloop.loop.live_response.INPUT_BYTES_MAX", 8_000
    )  # and 1,024 with each frame

    async def main(peer: Peer) -> None:
        response_id = (await peer.ask({**CREATE, "input": "x" * 2_000}))[0]["response"]["id"]
        assert accepted(await peer.ask(append(2_000, event_id="k1"))) == ["k1"]
        assert refusals(await peer.ask(append(2_000, event_id="k2"))) == [(429, "limit_exceeded")]
        assert accepted(await peer.ask(append(2_000, event_id="k1"))) == ["k1"], "said before"
        assert accepted(await peer.ask(append(10, event_id="k2"))) == ["k2"], "used no key up"
        following = await peer.ask({**CREATE, "previous_response_id": response_id})
        assert following[-1]["type"] == "response.done"
        assert accepted(await peer.ask(append(2_000, event_id="k3"))) == ["k3"]

    run(main)


def test_messages_that_wait_are_bounded() -> None:
    message = {"role": "user", "content": "x"}

    async def main(peer: Peer) -> None:
        await peer.ask(STALLED)
        many = append(event_id="many", input=[message] * (MESSAGES_MAX + 1))
        most = append(event_id="most", input=[message] * MESSAGES_MAX)
        more = append(event_id="more", input=[message])
        assert refusals(await peer.ask(many)) == [(429, "too_many_queued")]
        assert accepted(await peer.ask(most)) == ["most"], "nothing of the refused one counts"
        assert refusals(await peer.ask(more)) == [(429, "too_many_queued")]
        assert (await peer.wait(1.0))[-1]["response"]["state"] == "idle"
        assert accepted(await peer.ask(more)) == ["more"]

    run(main)


# -- a link ----------------------------------------------------------------------------------------


def test_what_waits_on_a_link_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentloop.serve.lanes.WAITING_BYTES_MAX", 5_000)

    async def main(peer: Peer) -> None:
        for lane in ("a", "b"):
            await peer.ask({**STALLED, "stream_id": lane})
        waiting = {**CREATE, "input": "x" * 2_000, "stream_id": "a"}
        assert await peer.ask(waiting) == []
        assert await peer.ask(append(1_000, event_id="kept", stream_id="a")) == []
        for lane in ("a", "b"):
            refused = await peer.ask({**waiting, "stream_id": lane})
            assert refusals(refused) == [(429, "too_many_queued")], "all lanes together"
            assert refused[0]["stream_id"] == lane
        refused = await peer.ask(append(2_000, event_id="k", stream_id="a"))
        assert refusals(refused) == [(429, "too_many_queued")]
        assert accepted(await peer.wait(1.0)) == ["kept"]
        assert accepted(await peer.ask(append(2_000, event_id="k", stream_id="a"))) == ["k"]

    run(main)


def test_frames_that_wait_with_a_create_are_bounded() -> None:
    async def main(peer: Peer) -> None:
        await peer.ask(STALLED)
        keys = [f"k{number}" for number in range(FRAMES_MAX)]
        assert await peer.ask(CREATE, *(append(event_id=key) for key in keys)) == []
        assert refusals(await peer.ask(append())) == [(429, "too_many_queued")]
        close = {"type": "response.close"}
        assert refusals(await peer.ask(close)) == [(429, "too_many_queued")]
        assert accepted(await peer.wait(1.0)) == keys

    run(main)


def test_small_append_does_not_overtake_a_large_one() -> None:
    async def main(peer: Peer) -> None:
        await peer.ask(CREATE)
        sizes = {"large": 1_000_000, "small": 1, "medium": 10_000}
        events = await peer.ask(*(append(size, event_id=key) for key, size in sizes.items()))
        assert accepted(events) == list(sizes)

    run(main)


# -- the engine and the model ----------------------------------------------------------------------


def test_response_that_waits_for_the_engine_keeps_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "one-slot", replace(INSTANT, name="one-slot", slots=1))
    turn = [{"stall_ms": 40_000}, {"text": "a"}]

    async def main(peer: Peer) -> None:
        await peer.ask({**CREATE, "stream_id": "first", "simulation": {"turns": [turn]}})
        await peer.ask({**CREATE, "stream_id": "second"})
        events = await peer.wait(31.0)
        second = [event["type"] for event in events if event["stream_id"] == "second"]
        assert second == ["response.in_progress"] * 2
        assert "response.done" in [e["type"] for e in await peer.wait(10.0)]

    run(main, profile="one-slot")


def test_hosted_result_that_does_not_come_back_is_a_placeholder() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}}
    asked = {"role": "user", "content": "look it up"}
    found = {"type": "message", "role": "assistant", "content": "It is there."}

    async def main(peer: Peer) -> None:
        history = [asked, search, found, {"role": "user", "content": "go on"}]
        created = (await peer.ask({**CREATE, "input": history}))[0]
        response = peer.service.live.get(created["response"]["id"]).response
        prompt = vocabulary().decode(response.prompt_from(0))
        assert prompt.count(RESULT_PLACEHOLDER) == 1
        assert prompt.index("look it up") < prompt.index(RESULT_PLACEHOLDER)
        assert prompt.index(RESULT_PLACEHOLDER) < prompt.index("It is there.")

    run(main)


# -- HTTP ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "flag", "stop"),
    [
        ("append", "responses_multi_agent=v1", "response.done"),
        ("inject", "responses_websockets=2026-02-04", "response.completed"),
    ],
)
def test_parameter_beats_the_flag_of_another_dialect(word: str, flag: str, stop: str) -> None:
    async def main(client: server_kit.Client) -> None:
        link = await client.connect(f"?protocol={word}", {"OpenAI-Beta": flag})
        server_kit.say(link, CREATE)
        heard = await server_kit.hear(link, "response.done", "response.completed")
        assert heard["type"] == stop
        await link.close()

    server_kit.run(main)


def test_superseded_response_can_be_got() -> None:
    async def main(client: server_kit.Client) -> None:
        link = await client.connect()
        ids = []
        for frame in (CREATE, server_kit.CREATE, CREATE):
            server_kit.say(link, frame)
            ids.append((await server_kit.hear(link, "response.done"))["response"]["id"])
        shown = [(await client.get(f"/v1/responses/{response_id}"))[1] for response_id in ids]
        assert [each["status"] for each in shown] == ["completed", "incomplete", "in_progress"]
        assert shown[1]["incomplete_details"] == {"reason": "superseded"}
        assert [item["type"] for item in shown[1]["output"]] == ["function_call"]
        await link.close()

    server_kit.run(main)
