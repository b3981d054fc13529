"""What an ended Response leaves behind: nothing that only the collector could free."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from agentloop.core.calls import Call
from agentloop.engine.api import Script
from agentloop.loop.live_response import LiveResponse
from agentloop.tokens.render import SaidCall, SaidText
from agentloop.wire.requests import AgentLoopOptions
from tests.loop.loop_kit import Ear, Kit, run, script_of

TEXT = script_of(SaidText("done"))
CALL = script_of(SaidCall("shell", "{}"))
HOSTED_CALL = script_of(SaidCall("hosted", "{}"))


@pytest.mark.parametrize("way", ["completes", "is cancelled", "loses its link", "is closed"])
@pytest.mark.parametrize("script", [TEXT, CALL, HOSTED_CALL], ids=["text", "call", "hosted call"])
def test_forgotten_response_is_freed_at_once(script: Script, way: str) -> None:
    async def main(kit: Kit) -> None:
        async def answer(call: Call) -> str:
            await kit.clock.sleep(5.0)
            return "found"

        gc.collect()
        gc.disable()
        try:
            live, ear = kit.start(
                lambda turn: script if turn.number == 0 else TEXT,
                options=AgentLoopOptions(final="complete" if way == "completes" else "hold"),
                hosted=answer,
            )
            await kit.clock.sleep(1.0)
            await end(kit, live, ear, way)
            await kit.clock.sleep(60.0)
            assert not live.is_open
            kit.live.forget(live.response.id)
            shell, response = weakref.ref(live), weakref.ref(live.response)
            del live, ear
            await asyncio.sleep(0)
            assert shell() is None
            assert response() is None
        finally:
            gc.enable()

    run(main)


async def end(kit: Kit, live: LiveResponse, ear: Ear, way: str) -> None:
    match way:
        case "completes":
            if live.response.calls.pending():
                kit.answer_all(live)
        case "is cancelled":
            live.response.cancel()
            live.publish()
        case "loses its link":
            live.leave(ear)
        case _:
            await kit.clock.sleep(10.0)
            if live.response.calls.pending():
                kit.answer_all(live)
                await kit.clock.sleep(1.0)
            live.close(lambda: None)
