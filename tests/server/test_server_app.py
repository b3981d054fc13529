"""The server's routes, its start and its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from agentloop.clock import Clock, run_virtual
from agentloop.errors import ConfigError, LinkClosed
from agentloop.link.api import MIB, LinkLimits
from agentloop.server.app import serve
from agentloop.server.options import ServerOptions
from tests.server.server_kit import CREATE, Client, hear, hear_end, run, say, serving

BIG = LinkLimits(message_bytes=32 * MIB, queue_bytes=128 * MIB)
MESSAGE_BYTES_MAX = 16 * MIB


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_answer(path: str) -> None:
    async def main(client: Client) -> None:
        assert (await client.get(path))[0] == 200

    run(main)


def test_response_can_be_got_while_open_and_after() -> None:
    async def main(client: Client) -> None:
        link = await client.connect()
        say(link, CREATE)
        done = (await hear(link, "response.done"))["response"]
        status, body = await client.get(f"/v1/responses/{done['id']}")
        assert status == 200
        assert body["id"] == done["id"]
        assert body["object"] == "response"
        assert body["status"] == "in_progress"
        assert body["output"] == done["output"]
        call_id = done["pending_tool_calls"][0]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "ok"}
        say(link, {"type": "response.append", "input": [output]})
        second = (await hear(link, "response.done"))["response"]
        say(link, {"type": "response.close"})
        await hear(link, "response.completed")
        _, body = await client.get(f"/v1/responses/{done['id']}")
        assert body["status"] == "completed"
        assert body["output"] == done["output"] + second["output"]
        assert body["usage"] == second["usage_total"]
        await link.close()

    run(main)


def test_unknown_response_is_not_found() -> None:
    async def main(client: Client) -> None:
        link = await client.connect()
        say(link, {**CREATE, "store": False})
        unstored = (await hear(link, "response.done"))["response"]["id"]
        for path in ("resp_x", "resp_x/timeline", unstored):
            status, body = await client.get(f"/v1/responses/{path}")
            assert status == 404
            assert body["error"]["code"] == "response_not_found"
        await link.close()

    run(main)


def test_timeline_accounts_for_every_turn() -> None:
    async def main(client: Client) -> None:
        link = await client.connect()
        say(link, CREATE)
        done = (await hear(link, "response.done"))["response"]
        await client.clock.sleep(2.0)
        call_id = done["pending_tool_calls"][0]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "ok"}
        say(link, {"type": "response.append", "input": [output]})
        await hear(link, "response.done")
        status, timeline = await client.get(f"/v1/responses/{done['id']}/timeline")
        assert status == 200
        assert timeline["response_id"] == done["id"]
        assert timeline["design"] == "ws-append"
        first, second = timeline["turns"]
        assert [first["turn"], second["turn"]] == [0, 1]
        assert first["phases"]["client_ms"] == pytest.approx(2000.0)
        assert first["phases"]["inference_ms"] > 0
        assert second["phases"]["client_ms"] == 0
        for turn in (first, second):
            assert {stage["name"] for stage in turn["stages"]} >= {"inference"}
            assert turn["bytes_up"] > 0
            assert turn["bytes_down"] > 0
        await link.close()

    run(main, profile="gpu65")


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {}),
        ("?protocol=telepathy", {}),
        ("?protocol=", {"OpenAI-Beta": "responses_websockets=2026-02-04"}),
        ("", {"OpenAI-Beta": "responses_websockets=1999-01-01"}),
    ],
)
def test_unknown_protocol_is_refused_before_the_upgrade(
    query: str, headers: dict[str, str]
) -> None:
    async def main(client: Client) -> None:
        status, body = await client.get(f"/v1/responses{query}", headers)
        assert status in (400, 426)
        assert body["error"]["code"] == "unsupported_protocol"
        with pytest.raises(LinkClosed) as refused:
            await client.connect(query, headers)
        assert refused.value.status == status

    run(main)


def test_flag_chooses_the_inject_protocol() -> None:
    async def main(client: Client) -> None:
        link = await client.connect("", {"OpenAI-Beta": "responses_multi_agent=v1"})
        say(link, {**CREATE, "simulation": {"turns": [[{"text": "hi"}]]}})
        stop = await hear(link, "response.done", "response.completed")
        assert stop["type"] == "response.completed"
        await link.close()

    run(main)


def test_flag_chooses_the_append_protocol() -> None:
    async def main(client: Client) -> None:
        header = "something_else=1, responses_websockets=2026-02-04"
        link = await client.connect("", {"OpenAI-Beta": header})
        say(link, CREATE)
        assert (await hear(link, "response.done"))["response"]["state"] == "suspended"
        await link.close()

    run(main)


def test_get_without_upgrade_is_refused_readably() -> None:
    async def main(client: Client) -> None:
        status, body = await client.get("/v1/responses?protocol=append")
        assert status in (400, 426)
        assert body["error"]["message"]

    run(main)


def sized(size: int, field: str = "input") -> bytes:
    """A create of exactly this many bytes."""
    empty = msgspec.json.encode({**CREATE, field: ""})
    return msgspec.json.encode({**CREATE, field: "x" * (size - len(empty))})


@pytest.mark.parametrize("field", ["input", "instructions"])
def test_largest_message_is_taken(field: str) -> None:
    async def main(client: Client) -> None:
        link = await client.connect(limits=BIG)
        frame = sized(MESSAGE_BYTES_MAX, field)
        assert len(frame) == MESSAGE_BYTES_MAX
        link.send([frame])
        event = await hear(link, "response.created", "error")
        assert event["type"] == "response.created", event["error"]
        await link.close()

    run(main)


def test_larger_message_is_refused_readably() -> None:
    async def main(client: Client) -> None:
        link, other = await client.connect(limits=BIG), await client.connect()
        link.send([sized(MESSAGE_BYTES_MAX + 1)])
        closed = await hear_end(link)
        assert closed.close_code == 1009
        assert str(MESSAGE_BYTES_MAX) in closed.message
        say(other, CREATE)
        await hear(other, "response.done")
        await link.close()
        await other.close()

    run(main)


def test_taken_port_is_said_in_one_line() -> None:
    async def main(client: Client) -> None:
        port = int(client.server.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}") as refused:
            async with serve(ServerOptions(port=port), clock=client.clock):
                pass
        assert refused.value.param == "port"

    run(main)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "agents.example"])
def test_bind_beyond_loopback_is_refused(host: str) -> None:
    async def main(clock: Clock) -> None:
        with pytest.raises(ConfigError, match="loopback"):
            async with serve(ServerOptions(host=host, port=0), clock=clock):
                pass

    run_virtual(main)


def test_unknown_profile_stops_the_start() -> None:
    async def main(clock: Clock) -> None:
        with pytest.raises(ConfigError, match="warp9"):
            async with serve(ServerOptions(profile="warp9", port=0), clock=clock):
                pass

    run_virtual(main)


def test_record_holds_every_frame(tmp_path: Path) -> None:
    path = tmp_path / "frames.jsonl"

    async def main(client: Client) -> None:
        first, second = await client.connect(), await client.connect()
        say(first, CREATE)
        await hear(first, "response.done")
        await client.clock.sleep(5.0)
        second.send([b"junk"])
        await hear(second, "error")
        seen = path.read_bytes()  # while it still runs
        assert seen.endswith(b"\n")
        assert b"junk" in seen
        await first.close()
        await second.close()

    run(main, record_path=path)
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert all(set(line) == {"t_s", "link", "dir", "bytes", "frame"} for line in lines)
    sent, *heard = [line for line in lines if line["link"] == 1]
    assert sent["dir"] == "in"
    assert sent["frame"] == CREATE
    assert sent["bytes"] == len(msgspec.json.encode(CREATE))
    assert {line["dir"] for line in heard} == {"out"}
    assert [line["frame"]["sequence_number"] for line in heard[:-1]] == list(range(len(heard) - 1))
    junk, answer = [line for line in lines if line["link"] == 2]
    assert (junk["dir"], junk["frame"], junk["bytes"]) == ("in", "junk", 4)
    assert answer["frame"]["type"] == "error"
    assert answer["t_s"] - sent["t_s"] >= 5.0


def test_record_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        with pytest.raises(ConfigError, match="cannot record"):
            async with serve(ServerOptions(record_path=tmp_path, port=0), clock=clock):
                pass

    run_virtual(main)


def test_shutdown_says_goodbye_and_leaves_nothing() -> None:
    async def main(clock: Clock) -> None:
        script = {"turns": [[{"stall_ms": 60_000}, {"text": "never said"}]]}
        async with asyncio.TaskGroup() as group, serving(clock) as client:
            at_work, idle = await client.connect(), await client.connect()
            say(at_work, {**CREATE, "simulation": script})
            created = await hear(at_work, "response.created")
            ends = [group.create_task(hear_end(link)) for link in (at_work, idle)]
            await clock.sleep(1.0)
            live = client.server.service.live.get(created["response"]["id"])
        assert [end.result().close_code for end in ends] == [1012, 1012]
        assert not live.is_open
        assert clock.now() < 10.0
        await at_work.close()
        await idle.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left running: {left}"
        with pytest.raises(LinkClosed):
            await client.connect()

    run_virtual(main)
