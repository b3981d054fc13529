"""One replica: a queue, slots, and for each generation the one thing that happens to it next.

The scheduler decides and its caller acts: it reads no clock and calls no sink. Time is whole
nanoseconds, given with each call. All state is `_queue` (waiting), `running` (how many hold a
slot), `_jobs` (all that have not finished) and `_heap` (what is due, ordered by time, then by who
was scheduled first).

    QUEUED ──slot──► PREFILLING ──► DECODING ⇄ STALLED
       └────────────────┴──────────────┴──────────┴──► ENDING ──► DONE

Whatever was due in the past is taken to have happened at its deadline, in order: a late caller
gets later deliveries, never other times. A generation's steps are planned a burst ahead; steps of
two parts are never joined. The first step comes with the prefill, each other one a gap later.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from heapq import heappop, heappush
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, assert_never

from agentloop.engine.api import (
    EngineUsage,
    Fault,
    Finish,
    GenRequest,
    Sample,
    Stall,
)
from agentloop.engine.sim.job import Job, Phase
from agentloop.engine.sim.prefix_cache import (
    PrefixCache,
    SimPrefix,
    empty_prefix,
)
from agentloop.engine.sim.timing import (
    NS_PER_MS,
    NS_PER_S,
    Pace,
    load_factor,
    prefill_ms,
    step_ms,
)
from agentloop.errors import EngineFault

if TYPE_CHECKING:
    from agentloop.engine.sim.profiles import Profile

BURST_STEPS = 64  # planned ahead, and given out at once where all are due


class Due(NamedTuple):
    """What the caller owes a sink: the ids of steps and the steps' sizes, or the finish."""

    job: Job
    ids: list[int]
    sizes: bytes
    finish: Finish | None = None


class Scheduler:
    """One replica of a profile."""

    def __init__(self, profile: Profile) -> None:
        self.running = 0
        self._profile = profile
        self._cache = _new_cache(profile)
        self._queue: OrderedDict[Job, None] = OrderedDict()
        self._jobs: dict[Job, None] = {}
        self._heap: list[tuple[int, int, Job]] = []
        self._orders = 0
        self._load = 1.0

    @property
    def queued(self) -> int:
        """How many generations wait for a slot."""
        return len(self._queue)

    def submit(self, request: GenRequest, now_ns: int) -> Job:
        """Take a generation: it begins where a slot is free, else it waits its turn.

        Raises:
            PrefixLost: `request.prefix` is no longer held.
            EngineFault: the prompt is empty or too long, or the queue is full.
        """
        prompt_tokens = len(request.ids)
        if request.prefix is not None:
            prompt_tokens += request.prefix.token_count
        self._check_room(prompt_tokens)
        block = self._cache.lease(request.prefix, request.salt, now_ns)
        prefix = request.prefix or empty_prefix(request.salt)
        assert isinstance(prefix, SimPrefix), "the cache leases no other prefix"
        prompt, keys = prefix.extended(request.ids, self._profile.block_tokens)
        parts = [p for p in request.script.parts if not isinstance(p, Sample) or p.ids]
        job = Job(
            id=request.id,
            prompt=prompt,
            keys=keys,
            block=block,
            samples=[part.ids for part in parts if isinstance(part, Sample)],
            parts=iter(parts),
            output_tokens_max=min(
                request.max_output_tokens - request.output_count,
                self._profile.context_tokens_max - prompt_tokens,
            ),
            pace=Pace(self._profile, request.seed),
            usage=EngineUsage(prompt_tokens=prompt_tokens),
            submitted_ns=now_ns,
        )
        self._jobs[job] = None
        self._queue[job] = None
        self._admit(now_ns)
        return job

    def cancel(self, job: Job, now_ns: int) -> None:
        """End a generation at its next step boundary; that step's ids are discarded."""
        match job.phase:
            case Phase.ENDING | Phase.DONE:
                return
            case Phase.QUEUED:
                del self._queue[job]
                due_ns = now_ns
            case Phase.DECODING:
                due_ns = job.due_ns
            case Phase.PREFILLING | Phase.STALLED:  # nothing is in flight: as if a step were
                due_ns = min(job.due_ns, now_ns + self._step_ns(job))
            case _:
                assert_never(job.phase)
        self._end(job, due_ns, "cancel")

    def cancel_all(self, now_ns: int) -> None:
        """End every generation at once."""
        self._queue.clear()
        for job in self._jobs:
            self._end_now(job, now_ns, "cancel")

    def kill(self, now_ns: int) -> None:
        """The replica dies: every generation fails, retryably, and nothing is held any more."""
        self._queue.clear()
        self._cache = _new_cache(self._profile)
        for job in self._jobs:
            job.block = None
            fault = EngineFault("the replica died", code="replica_lost", is_retryable=True)
            self._end_now(job, now_ns, "error", fault)

    def lose_prefixes(self) -> None:
        """Evict every prefix that no generation is using."""
        self._cache.evict_all()

    def next_due_ns(self) -> int | None:
        """When something happens next; None where nothing will."""
        heap = self._heap
        while heap and heap[0][1] != heap[0][2].order:
            heappop(heap)  # rescheduled since
        return heap[0][0] if heap else None

    def pull(self, now_ns: int) -> Due | None:
        """The next delivery that is due, or None. The caller repeats this until None."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            due_ns, order, job = heappop(heap)
            if order != job.order:
                continue  # rescheduled since
            if job.phase is Phase.DECODING and job.index < len(job.sizes):
                return self._burst(job, due_ns, now_ns)
            if job.phase is Phase.ENDING:
                return self._finish(job, due_ns)
            if job.phase is Phase.PREFILLING:
                self._hold_prompt(job, due_ns)
            self._plan(job, due_ns)
        return None

    def _check_room(self, prompt_tokens: int) -> None:
        profile = self._profile
        if prompt_tokens == 0:
            raise EngineFault("the prompt is empty", code="empty_prompt", is_retryable=False)
        if prompt_tokens > profile.context_tokens_max:
            raise EngineFault(
                f"the prompt has {prompt_tokens} tokens; {profile.name} takes at most "
                f"{profile.context_tokens_max}",
                code="context_length_exceeded",
                is_retryable=False,
            )
        if self.running == profile.slots and self.queued >= profile.queue_requests_max:
            raise EngineFault(
                f"{self.queued} generations wait already", code="overloaded", is_retryable=True
            )

    def _admit(self, now_ns: int) -> None:
        """Give free slots to those who have waited longest."""
        while self._queue and self.running < self._profile.slots:
            job, _ = self._queue.popitem(last=False)
            self._set_running(self.running + 1)
            self._begin_prefill(job, max(now_ns, job.submitted_ns))

    def _begin_prefill(self, job: Job, at_ns: int) -> None:
        assert job.block is not None, "a dead replica has no queue"
        job.admitted_ns = at_ns
        job.block = self._cache.match(job.block, job.keys, at_ns)
        usage = job.usage
        usage.cached_tokens = min(job.block.token_count, usage.prompt_tokens - 1)
        uncached_tokens = usage.prompt_tokens - usage.cached_tokens
        took_ms = prefill_ms(self._profile, uncached_tokens, usage.cached_tokens)
        took_ms *= self._load * job.pace.prefill_jitter()
        self._schedule(job, Phase.PREFILLING, at_ns + round(took_ms * NS_PER_MS))

    def _hold_prompt(self, job: Job, at_ns: int) -> None:
        assert job.block is not None, "a dead replica's generations are ending"
        job.prefilled_ns = at_ns
        job.block = self._cache.hold(job.block, job.keys, at_ns)

    def _plan(self, job: Job, at_ns: int) -> None:
        """Settle what follows at `at_ns`: steps, a stall or the end."""
        room_tokens = job.output_tokens_max - job.usage.output_tokens
        is_between = job.offset == len(job.sample)
        part = next(job.parts, None) if is_between else None
        if is_between and part is None:
            return self._end(job, at_ns, "stop")
        if room_tokens <= 0:
            return self._end(job, at_ns, "length")
        match part:
            case Stall(stall_s):
                return self._schedule(job, Phase.STALLED, at_ns + round(stall_s * NS_PER_S))
            case Fault(code, is_retryable):
                fault = EngineFault(
                    f"{job.id}: a simulated fault", code=code, is_retryable=is_retryable
                )
                return self._end(job, at_ns, "error", fault)
            case Sample(ids, is_easy):
                job.sample, job.is_easy, job.offset = list(ids), is_easy, 0
            case None:
                pass  # inside a sample
        return self._plan_steps(job, room_tokens, at_ns)

    def _plan_steps(self, job: Job, room_tokens: int, at_ns: int) -> None:
        usage = job.usage
        tokens = min(room_tokens, len(job.sample) - job.offset)
        sizes = job.pace.sizes(tokens, BURST_STEPS, job.is_easy)
        gaps_ns = job.pace.gaps_ns(sizes, usage.prompt_tokens + usage.output_tokens)
        if gaps_ns and not usage.output_tokens:
            gaps_ns[0] = 0  # the prefill itself samples the first step
        job.sizes, job.gaps_ns, job.index = sizes, gaps_ns, 0
        job.begin, job.offset = job.offset, job.offset + sum(sizes)
        first_gap_ns = round(gaps_ns[0] * self._load) if gaps_ns else 0
        self._schedule(job, Phase.DECODING, at_ns + first_gap_ns)

    def _burst(self, job: Job, due_ns: int, now_ns: int) -> Due:
        """The steps from `due_ns` on that are due before anything else is."""
        sizes, first = job.sizes, job.index
        index = len(sizes)
        if job.gaps_ns:
            until_ns = min(now_ns, self._heap[0][0]) if self._heap else now_ns
            for index in range(first + 1, len(sizes)):
                due_ns += round(job.gaps_ns[index] * self._load)
                if due_ns > until_ns:
                    break
            else:
                index = len(sizes)
        burst = bytes(sizes[first:index])
        begin, end = job.begin, job.begin + sum(burst)
        job.index, job.begin = index, end
        job.usage.output_tokens += end - begin
        self._schedule(job, Phase.DECODING, due_ns)
        return Due(job, job.sample[begin:end], burst)

    def _finish(self, job: Job, at_ns: int) -> Due:
        del self._jobs[job]
        job.phase = Phase.DONE
        admitted_ns = at_ns if job.admitted_ns is None else job.admitted_ns
        prefilled_ns = at_ns if job.prefilled_ns is None else job.prefilled_ns
        usage = job.usage
        usage.discarded_tokens = sum(job.sizes[job.index : job.index + 1])
        usage.queue_s = (admitted_ns - job.submitted_ns) / NS_PER_S
        usage.prefill_s = (prefilled_ns - admitted_ns) / NS_PER_S
        usage.decode_s = (at_ns - prefilled_ns) / NS_PER_S
        prefix = self._keep(job, at_ns)
        if job.admitted_ns is not None:
            self._set_running(self.running - 1)
            self._admit(at_ns)
        return Due(job, [], b"", Finish(job.reason, usage, prefix, job.error))

    def _keep(self, job: Job, at_ns: int) -> SimPrefix | None:
        """Hold prompt and output for the next turn, where they were computed, and end the lease."""
        if job.block is None:
            return None
        if job.prefilled_ns is None:
            self._cache.release(job.block, at_ns)
            return None
        sampled = islice(chain.from_iterable(job.samples), job.usage.output_tokens)
        output = array("I", sampled)
        prefix, keys = job.prompt.extended(output, self._profile.block_tokens, uncomputed=1)
        self._cache.release(self._cache.hold(job.block, keys, at_ns), at_ns)
        return prefix

    def _end(self, job: Job, due_ns: int, reason: str, error: EngineFault | None = None) -> None:
        job.reason, job.error = reason, error
        self._schedule(job, Phase.ENDING, due_ns)

    def _end_now(
        self, job: Job, now_ns: int, reason: str, error: EngineFault | None = None
    ) -> None:
        """End it without waiting for a step boundary; an end that was settled before stands."""
        if job.phase is Phase.ENDING:
            self._schedule(job, Phase.ENDING, min(job.due_ns, now_ns))
        else:
            self._end(job, now_ns, reason, error)

    def _schedule(self, job: Job, phase: Phase, due_ns: int) -> None:
        self._orders += 1
        job.phase, job.due_ns, job.order = phase, due_ns, self._orders
        heappush(self._heap, (due_ns, self._orders, job))

    def _step_ns(self, job: Job) -> int:
        context_tokens = job.usage.prompt_tokens + job.usage.output_tokens
        return round(step_ms(self._profile, context_tokens) * self._load * NS_PER_MS)

    def _set_running(self, running: int) -> None:
        self.running = running
        self._load = load_factor(self._profile, running)


def _new_cache(profile: Profile) -> PrefixCache:
    idle_ttl_ns = round(profile.idle_ttl_s * NS_PER_S)
    return PrefixCache(profile.block_tokens, profile.cache_tokens, idle_ttl_ns)
