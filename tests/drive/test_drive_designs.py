from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from agentloop.clock import WallClock
from agentloop.drive.api import Refused
from agentloop.drive.append import AppendDrive
from agentloop.drive.drives import DRIVES
from agentloop.drive.hosted import HostedDrive
from agentloop.drive.socket import SocketDrive, socket_url
from agentloop.errors import LinkClosed, ProtocolError
from agentloop.ids import IdSource
from agentloop.link.memory import memory_pair
from agentloop.wire.items import FunctionCallOutput
from agentloop.wire.requests import Create
from tests.drive.fake_server import RESPONSE_ID, FakeServer

REQUEST = Create(model="m", input=Raw(b'"go"'), tools=[Raw(b'{"type":"web_search"}')])

Make = Callable[[type[SocketDrive]], tuple[Any, FakeServer]]


@pytest.fixture
def make() -> Make:
    def made(drive_type: type[SocketDrive]) -> tuple[Any, FakeServer]:
        client, server = memory_pair(WallClock())
        return drive_type(client, IdSource(1)), FakeServer(server)

    return made


def test_the_table_names_each_design_as_it_names_itself() -> None:
    assert {name: drive.name for name, drive in DRIVES.items()} == {
        "ws-append": "ws-append",
        "hosted": "hosted",
    }


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://h:1", "ws://h:1/v1/responses?protocol=append"),
        ("https://h/x", "wss://h/x/v1/responses?protocol=append"),
    ],
)
def test_the_socket_of_a_server(base: str, url: str) -> None:
    assert socket_url(base, "append") == url


async def test_append_creates_a_response_that_outlives_its_link(make: Make) -> None:
    drive, server = make(AppendDrive)
    drive.create(REQUEST)
    create = await server.read("response.create")
    assert create["agent_loop"] == {
        "final": "hold", "detach_ttl_s": 86_400, "on_tool_timeout": "result"
    }  # fmt: skip
    assert create["event_id"]
    assert create["input"] == "go"
    assert create["tools"] == [{"type": "web_search"}]


async def test_append_sends_all_outputs_in_one_message_with_a_key(make: Make) -> None:
    drive, server = make(AppendDrive)
    server.created()
    await drive.recv()
    outputs = [FunctionCallOutput(call_id=each, output=f"of {each}") for each in ("a", "b")]
    drive.resume(outputs)
    drive.resume(outputs[:1])
    first, second = [await server.read("response.append") for _ in range(2)]
    assert [item["call_id"] for item in first["input"]] == ["a", "b"]
    assert first["response_id"] == RESPONSE_ID
    assert first["event_id"] != second["event_id"]


async def test_append_stops_at_done_and_at_the_terminal(make: Make) -> None:
    drive, server = make(AppendDrive)
    server.created()
    server.suspended("a", "b")
    server.say("response.done", response={"id": RESPONSE_ID, "state": "sampling"})
    server.idle()
    server.end()
    stops = [drive.stop_of(await drive.recv()) for _ in range(5)]
    assert [stop and (stop.pending, stop.is_final) for stop in stops] == [
        None, (("a", "b"), False), None, ((), False), ((), True)
    ]  # fmt: skip


async def test_close_and_cancel_name_the_response(make: Make) -> None:
    drive, server = make(AppendDrive)
    server.created()
    await drive.recv()
    drive.close()
    drive.cancel()
    for message_type in ("response.close", "response.cancel"):
        assert (await server.read(message_type))["response_id"] == RESPONSE_ID


async def test_cancel_before_the_response_is_known_names_none(make: Make) -> None:
    drive, server = make(AppendDrive)
    drive.cancel()
    assert "response_id" not in await server.read("response.cancel")


async def test_hosted_asks_once_and_takes_no_outputs(make: Make) -> None:
    drive, server = make(HostedDrive)
    drive.create(REQUEST)
    assert (await server.read("response.create"))["agent_loop"]["final"] == "complete"
    with pytest.raises(ProtocolError, match="hosted takes no input"):
        drive.resume([])


async def test_an_error_frame_is_raised_with_what_it_says(make: Make) -> None:
    drive, server = make(AppendDrive)
    error = {"type": "x", "code": "lane_busy", "message": "the lane is busy", "param": "stream_id"}
    server.say("error", status=409, error=error)
    with pytest.raises(Refused, match="the lane is busy") as caught:
        await drive.recv()
    shown = caught.value
    assert (shown.code, shown.status, shown.param) == ("lane_busy", 409, "stream_id")


async def test_a_stop_without_its_response_is_refused(make: Make) -> None:
    drive, server = make(AppendDrive)
    server.say("response.done")
    server.say("response.completed")
    for _ in range(2):
        event = await drive.recv()
        with pytest.raises(ProtocolError):
            drive.stop_of(event)


async def test_a_closed_link_is_raised(make: Make) -> None:
    drive, server = make(AppendDrive)
    await server.link.close(1012, "going away")
    with pytest.raises(LinkClosed, match="going away"):
        await drive.recv()
    await drive.disconnect()
