"""The server's side of one link: what no client should send, and faults of our own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from agentloop.clock import Clock, run_virtual
from agentloop.core.lanes import LANES_MAX
from agentloop.link.api import Link
from agentloop.serve.service import Service
from agentloop.server.options import ServerOptions
from tests.conformance.runner import SETTLE_S, World, hear
from tests.conformance.stages import in_memory

CREATE = {"type": "response.create", "model": "sim", "input": "hi"}
OPTIONS = ServerOptions(profile="instant", is_reproducible=True)


class Peer:
    """A client that says anything and hears everything."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link = link
        self._clock = clock

    async def ask(self, frame: bytes | dict[str, Any]) -> list[Any]:
        """All events that come of it until everybody waits."""
        self._link.send([frame if isinstance(frame, bytes) else msgspec.json.encode(frame)])
        return await hear(self._link)

    def cut(self) -> None:
        self._link.abort()


def run(main: Callable[[Peer, World, Clock], Coroutine[Any, Any, None]]) -> None:
    async def watched(clock: Clock) -> None:
        async with in_memory(OPTIONS, {}, clock) as world:
            await main(Peer(await world.open("append"), clock), world, clock)

    run_virtual(watched)


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff\xfe",
        b'{"type":"response.append","input":"\xc3\x28"}',
        b'{"type":"response.create","model":"m","input":"\xed\xa0\x80"}',
        b"",
        b"[" * 100_000,
        b'{"type":"response.append","input":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"type":"response.create","model":"m","max_output_tokens":' + b"9" * 10_000 + b"}",
        b'{"type":"response.create","model":"m","tools":[1]}',
        b'{"type":"response.attach"}',
    ],
    ids=["no text", "broken text", "encoded surrogate", "empty", "open", "deep", "huge number",
         "no tool", "no id"],
)  # fmt: skip
def test_bad_frame_costs_one_error_frame(frame: bytes) -> None:
    async def main(peer: Peer, world: World, clock: Clock) -> None:
        await peer.ask(CREATE)
        (error,) = await peer.ask(frame)
        assert error["type"] == "error"
        assert error["status"] == 400
        more = {"type": "response.append", "input": [{"role": "user", "content": "more"}]}
        assert (await peer.ask(more))[-1]["response"]["state"] == "idle"

    run(main)


def test_lanes_are_bounded() -> None:
    async def main(peer: Peer, world: World, clock: Clock) -> None:
        for number in range(LANES_MAX):
            events = await peer.ask({**CREATE, "stream_id": f"lane-{number}"})
            assert events[-1]["type"] == "response.done"
        (error,) = await peer.ask({**CREATE, "stream_id": "one-more"})
        assert error["status"] == 400
        assert error["error"]["code"] == "websocket_stream_limit_reached"
        assert error["stream_id"] == "one-more"
        assert (await peer.ask(CREATE))[-1]["type"] == "response.done"
        again = {"type": "response.append", "stream_id": "lane-3", "input": []}
        assert (await peer.ask(again))[0]["type"] == "response.append.accepted"

    run(main)


def test_bug_of_ours_costs_one_error_frame(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a secret of ours")

    async def main(peer: Peer, world: World, clock: Clock) -> None:
        await peer.ask(CREATE)
        with monkeypatch.context() as patch:
            patch.setattr(Service, "admit", fail)
            (error,) = await peer.ask({**CREATE, "event_id": "k"})
        assert error["status"] == 500
        assert error["event_id"] == "k"
        assert "secret" not in error["error"]["message"]
        assert (await peer.ask({**CREATE, "event_id": "k"}))[-1]["type"] == "response.done"

    run(main)
    assert "a secret of ours" in (caplog.records[0].exc_text or "")


def test_lost_link_ends_its_own_responses_only() -> None:
    async def main(peer: Peer, world: World, clock: Clock) -> None:
        other = Peer(await world.open("append"), clock)
        mine = [(await peer.ask({**CREATE, "stream_id": name}))[0] for name in ("a", "b")]
        theirs = (await other.ask(CREATE))[0]
        watch = {"type": "response.attach", "response_id": theirs["response"]["id"]}
        await peer.ask({**watch, "stream_id": "c", "observe": True})
        peer.cut()
        await clock.sleep(SETTLE_S)
        live = world.service.live
        assert not any(live.get(event["response"]["id"]).is_open for event in mine)
        assert live.get(theirs["response"]["id"]).is_open
        more = {"type": "response.append", "input": [{"role": "user", "content": "more"}]}
        assert (await other.ask(more))[-1]["type"] == "response.done"

    run(main)
