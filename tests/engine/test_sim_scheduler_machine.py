"""The scheduler under any order of submits, cancels, time and disasters."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from agentloop.engine.api import Fault, Part, Sample, Stall
from agentloop.engine.sim.job import Job, Phase
from agentloop.errors import EngineFault
from tests.engine.sim_kit import MS, PLAIN, Driver, make_request, sample

parts = st.lists(
    st.one_of(
        st.builds(sample, st.integers(0, 30)),
        st.sampled_from([Stall(0.004), Stall(0.0), Fault("server_error", False)]),
    ),
    max_size=4,
)


class SchedulerMachine(RuleBasedStateMachine):
    """One finish each, and nothing leaks."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(
            replace(PLAIN, draft_count=3, acceptance_hard=0.5, acceptance_easy=0.9, slots=2,
                    cache_tokens=80, idle_ttl_s=0.2, dwell_tokens_hard=8.0)
        )  # fmt: skip
        self.jobs: list[Job] = []
        self.scripts: dict[str, list[int]] = {}

    @rule(script=parts, prompt=st.integers(1, 30), output_max=st.integers(0, 50), data=st.data())
    def submit(self, script: list[Part], prompt: int, output_max: int, data) -> None:
        handles = [finish.prefix for _, finish in self.driver.finishes.values()]
        prefix = data.draw(st.sampled_from([None, *handles]))
        name = str(len(self.jobs))
        request = make_request(
            name, *script, prompt=range(prompt), prefix=prefix, output_max=output_max
        )
        try:
            self.jobs.append(self.driver.submit(request))
        except EngineFault:  # lost, too long, or overloaded
            return
        said = [part.ids for part in script if isinstance(part, Sample)]
        self.scripts[name] = [token for ids in said for token in ids]

    @rule(data=st.data())
    def cancel(self, data) -> None:
        if self.jobs:
            self.driver.cancel(data.draw(st.sampled_from(self.jobs)))

    @rule(wait_ms=st.integers(0, 60))
    def advance(self, wait_ms: int) -> None:
        self.driver.run(self.driver.now_ns + wait_ms * MS)

    @rule(wait_ms=st.integers(0, 60))
    def advance_late(self, wait_ms: int) -> None:
        self.driver.now_ns += wait_ms * MS

    @rule()
    def lose_prefixes(self) -> None:
        self.driver.scheduler.lose_prefixes()

    @rule()
    def kill(self) -> None:
        self.driver.scheduler.kill(self.driver.now_ns)

    @invariant()
    def counts_agree(self) -> None:
        scheduler = self.driver.scheduler
        queued = sum(job.phase is Phase.QUEUED for job in self.jobs)
        assert 0 <= scheduler.running <= 2
        assert scheduler.queued == queued <= 3

    def teardown(self) -> None:
        self.driver.run()
        scheduler = self.driver.scheduler
        assert (scheduler.running, scheduler.queued) == (0, 0)
        assert set(self.driver.finishes) == set(self.scripts)
        assert all(block.leases == 0 for block in scheduler._cache._blocks.values())
        assert scheduler._cache.held_tokens <= 80
        for name, (_, finish) in self.driver.finishes.items():
            said = self.driver.ids(name)
            assert said == self.scripts[name][: len(said)]
            assert finish.usage.output_tokens == len(said)
            assert (finish.reason == "error") == (finish.error is not None)
            if finish.reason == "stop":
                assert said == self.scripts[name]
            if finish.prefix is not None:
                assert finish.prefix.token_count == finish.usage.prompt_tokens + len(said)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=30)
