"""What a hostile peer can say over one link, and that it costs one readable error at most."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from agentloop.clock import Clock, run_virtual
from agentloop.server.options import ServerOptions
from tests.conformance.runner import SETTLE_S, World, hear
from tests.conformance.stages import in_memory

CREATE: dict[str, Any] = {"type": "response.create", "model": "sim", "input": "hi"}
MESSAGE_CHARS_MAX = 1_000
CALL = {"call": {"name": "shell"}}


class Peer:
    """Says anything and hears everything, on a link of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._link: Any = None

    async def ask(self, frame: dict[str, Any], patience_s: float = SETTLE_S) -> list[Any]:
        """All that comes until everybody waits."""
        if self._link is None:
            self._link = await self.world.open("append")
        self._link.send([msgspec.json.encode(frame)])
        return await hear(self._link, patience_s)

    def cut(self) -> None:
        self._link.abort()


def run(main: Callable[[Peer], Coroutine[Any, Any, None]], profile: str = "instant") -> None:
    async def watched(clock: Clock) -> None:
        options = ServerOptions(profile=profile, is_reproducible=True)
        async with in_memory(options, {}, clock) as world:
            await main(Peer(world))

    run_virtual(watched)


def scripted(*turns: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {**CREATE, "simulation": {"turns": turns}, **fields}


@pytest.mark.parametrize("name", ["a" * 5_000, "é" * 200], ids=["long", "long in bytes"])
@pytest.mark.parametrize("kind", ["sim-script", "sim-replay"])
def test_model_name_too_long_for_a_file_is_an_unknown_model(kind: str, name: str) -> None:
    async def main(peer: Peer) -> None:
        (error,) = await peer.ask({**CREATE, "model": f"{kind}:{name}"})
        assert (error["status"], error["error"]["code"]) == (404, "model_not_found")

    run(main)


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "response.attach", "response_id": "x" * 1_000_000},
        {**CREATE, "previous_response_id": "x" * 1_000_000},
        {**CREATE, "model": "sim-script:" + "/" * 1_000_000},
        {**CREATE, "simulation": {"profile": "p" * 1_000_000}},
    ],
    ids=["attach", "parent", "model", "profile"],
)
def test_error_message_stays_readable_whatever_it_quotes(frame: dict[str, Any]) -> None:
    async def main(peer: Peer) -> None:
        (error,) = await peer.ask(frame)
        assert error["type"] == "error"
        assert len(error["error"]["message"]) <= MESSAGE_CHARS_MAX

    run(main)


def test_huge_seed_is_refused_or_used_but_never_fails_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(peer: Peer) -> None:
        frame = scripted([{"text": "hi"}])
        frame["simulation"]["seed"] = 10**4_298
        events = await peer.ask(frame, patience_s=3_600.0)
        assert events[-1]["type"] in ("error", "response.done")
        assert events[-1].get("status", 400) == 400
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    run(main, profile="spark1000")


def test_two_thousand_engine_retries_back_off_without_overflow() -> None:
    async def main(peer: Peer) -> None:
        turn: list[dict[str, Any]] = [{"fail": "overloaded", "times": 2_000}, {"text": "at last"}]
        frame = scripted(turn, agent_loop={"engine_retries": 2_000})
        events = await peer.ask(frame, patience_s=3_600.0)
        stops = [e for e in events if e["type"] in ("response.done", "response.failed", "error")]
        assert [stop["type"] for stop in stops] in (["response.done"], ["error"])

    run(main)


def test_observing_the_own_response_does_not_give_it_away() -> None:
    async def main(peer: Peer) -> None:
        events = await peer.ask(scripted([CALL], [{"text": "ok"}]))
        response = events[-1]["response"]
        call_id = response["pending_tool_calls"][0]["call_id"]
        attach = {"type": "response.attach", "response_id": response["id"], "observe": True}
        await peer.ask(attach)
        output = {"type": "function_call_output", "call_id": call_id, "output": "x"}
        events = await peer.ask({"type": "response.append", "input": [output]})
        assert events[0]["type"] == "response.append.accepted"
        assert events[-1]["response"]["state"] == "idle"

    run(main)


def test_create_waits_for_the_turn_of_a_response_that_its_own_lane_observes() -> None:
    async def main(peer: Peer) -> None:
        turn: list[dict[str, Any]] = [{"text": "a"}, {"stall_ms": 60_000}, {"text": "b"}]
        events = await peer.ask(scripted(turn))
        response_id = events[0]["response"]["id"]
        await peer.ask({"type": "response.attach", "response_id": response_id, "observe": True})
        events = await peer.ask(CREATE)
        assert "response.created" not in [event["type"] for event in events]

    run(main)


def test_appends_to_a_waiting_create_are_bounded() -> None:
    async def main(peer: Peer) -> None:
        await peer.ask(scripted([{"stall_ms": 86_000_000}, {"text": "late"}]))
        await peer.ask(CREATE)
        append = {"type": "response.append", "input": "x" * 1_000_000}
        for _ in range(100):  # 100 MB that nobody has admitted
            if await peer.ask(append, patience_s=0.001):
                return  # refused
        pytest.fail("100 MB of appends were kept for a create that waits")

    run(main)


def test_unstored_response_is_forgotten_after_its_link() -> None:
    """Else each large input of a peer stays in memory for a thousand Responses."""

    async def main(peer: Peer) -> None:
        other = Peer(peer.world)
        frame = {**CREATE, "store": False, "agent_loop": {"final": "complete"}}
        response_id = (await peer.ask(frame))[0]["response"]["id"]
        peer.cut()
        await asyncio.sleep(1.0)
        (error, *_) = await other.ask({"type": "response.attach", "response_id": response_id})
        assert error["error"]["code"] == "response_not_found"

    run(main)
