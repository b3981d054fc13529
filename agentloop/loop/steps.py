"""The engine's sink on one side, an asynchronous iterator of joined steps on the other."""

from __future__ import annotations

import asyncio
from array import array

from agentloop.engine.api import Finish, TokenIds


class StepStream:
    """Collects the steps of one generation; each iteration takes all that have come.

    The engine never waits for its reader: a busy loop finds more steps joined in one batch.
    """

    def __init__(self) -> None:
        self.finish: Finish | None = None
        self._ids: TokenIds[int] = array("I")
        self._sizes = b""
        self._waiter: asyncio.Future[None] | None = None

    def on_steps(self, ids: list[int], sizes: bytes) -> None:
        if self.finish is not None:  # what comes after the finish belongs to nobody
            return
        self._ids.extend(ids)
        self._sizes += sizes
        self._wake()

    def on_finish(self, finish: Finish) -> None:
        self.finish = self.finish or finish
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> StepStream:
        return self

    async def __anext__(self) -> tuple[TokenIds[int], bytes]:
        """The ids and sizes of all steps since the last call; ends after the finish."""
        while not self._sizes:
            if self.finish is not None:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        taken = self._ids, self._sizes
        self._ids, self._sizes = array("I"), b""
        return taken
