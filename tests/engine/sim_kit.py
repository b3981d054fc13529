"""What the tests of the simulated engine share: requests, sinks and two small fake clocks."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise

from agentloop.engine.api import Finish, GenRequest, Part, Prefix, Sample, Script
from agentloop.engine.sim.job import Job
from agentloop.engine.sim.profiles import Profile
from agentloop.engine.sim.scheduler import Scheduler

MS = 1_000_000

# Round numbers without chance: a prefill of 10 ms + 1 ms for each uncached token, steps of 5 ms.
PLAIN = Profile(
    name="plain",
    step_ms=5.0,
    prefill_ms=10.0,
    prefill_ms_per_new_token=1.0,
    slots=2,
    queue_requests_max=3,
    context_tokens_max=1_000,
    cache_tokens=10_000,
    block_tokens=4,
    idle_ttl_s=60.0,
)


def make_request(
    name: str = "a",
    *parts: Part,
    prompt: Iterable[int] = range(10),
    prefix: Prefix | None = None,
    output_max: int = 1_000,
    output_count: int = 0,
    salt: str = "",
    seed: int = 0,
) -> GenRequest:
    return GenRequest(
        id=name,
        prefix=prefix,
        ids=array("I", prompt),
        script=Script(parts),
        max_output_tokens=output_max,
        output_count=output_count,
        salt=salt,
        seed=seed,
    )


def sample(count: int, first: int = 100) -> Sample:
    return Sample(tuple(range(first, first + count)))


class Driver:
    """Drives the pure scheduler: jumps to each deadline and writes down what was delivered."""

    def __init__(self, profile: Profile) -> None:
        self.scheduler = Scheduler(profile)
        self.now_ns = 0
        self.steps: dict[str, list[tuple[int, list[int]]]] = {}
        self.finishes: dict[str, tuple[int, Finish]] = {}

    def submit(self, request: GenRequest) -> Job:
        return self.scheduler.submit(request, self.now_ns)

    def cancel(self, job: Job) -> None:
        self.scheduler.cancel(job, self.now_ns)

    def pull_all(self) -> None:
        while (due := self.scheduler.pull(self.now_ns)) is not None:
            name = due.job.id
            assert name not in self.finishes, "nothing may follow a finish"
            if due.finish is not None:
                self.finishes[name] = self.now_ns, due.finish
            steps = split(due.ids, due.sizes)
            self.steps.setdefault(name, []).extend((self.now_ns, ids) for ids in steps)

    def run(self, until_ns: int | None = None) -> None:
        """Jump from deadline to deadline, to the end or to `until_ns`."""
        while (due_ns := self.scheduler.next_due_ns()) is not None:
            if until_ns is not None and due_ns > until_ns:
                break
            self.now_ns = max(self.now_ns, due_ns)
            self.pull_all()
        if until_ns is not None:
            self.now_ns = until_ns

    def ids(self, name: str) -> list[int]:
        return [token for _, ids in self.steps.get(name, []) for token in ids]

    def times_ms(self, name: str) -> list[float]:
        return [time_ns / MS for time_ns, _ in self.steps.get(name, [])]

    def finish(self, name: str) -> Finish:
        return self.finishes[name][1]

    def finish_ms(self, name: str) -> float:
        return self.finishes[name][0] / MS


class JumpClock:
    """A clock whose time moves only when its timer fires, in the loop's next round.

    `late_s` makes every timer late, as a busy loop does.
    """

    is_virtual = True

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s = 1_000.0  # an engine must not rely on a clock that begins at zero
        self.late_s = late_s
        self.timers: list[asyncio.TimerHandle] = []

    def now(self) -> float:
        return self.now_s

    def timestamp(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += max(0.0, delay_s)
        await asyncio.sleep(0)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        def fire() -> None:
            self.now_s = max(self.now_s, when_s + self.late_s)
            callback()

        assert sum(not timer.cancelled() for timer in self.timers) == 0, "one timer per replica"
        timer = asyncio.get_running_loop().call_later(0, self._fire, fire)
        self.timers = [timer]
        return timer

    def _fire(self, fire: Callable[[], None]) -> None:
        self.timers = []
        fire()


def split(ids: list[int], sizes: bytes) -> list[list[int]]:
    """Joined steps, apart again."""
    ends = list(accumulate(sizes, initial=0))
    assert ends[-1] == len(ids)
    return [ids[begin:end] for begin, end in pairwise(ends)]


class RecordingSink:
    """Writes down steps; `wait` gives the finish."""

    def __init__(self, on_steps: Callable[[list[int]], object] | None = None) -> None:
        self.steps: list[list[int]] = []
        self.finishes: list[Finish] = []
        self._then = on_steps
        self._done = asyncio.Event()

    @property
    def ids(self) -> list[int]:
        return [token for ids in self.steps for token in ids]

    def on_steps(self, ids: list[int], sizes: bytes) -> None:
        self.steps += split(ids, sizes)
        if self._then is not None:
            self._then(ids)

    def on_finish(self, finish: Finish) -> None:
        self.finishes.append(finish)
        self._done.set()

    async def wait(self) -> Finish:
        await self._done.wait()
        return self.finishes[0]
