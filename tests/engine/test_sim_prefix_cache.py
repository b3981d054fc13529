"""The prefix cache, against a naive one that touches whole chains and searches everything."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from agentloop.engine.api import PrefixLost
from agentloop.engine.sim import prefix_cache
from agentloop.engine.sim.prefix_cache import Block, PrefixCache, SimPrefix, empty_prefix, root_key
from agentloop.engine.sim.scheduler import Scheduler
from tests.engine.sim_kit import PLAIN, Driver, make_request, sample

BLOCK_TOKENS = 2
CAPACITY_TOKENS = 8
IDLE_TTL_NS = 20

Path = tuple[int, ...]  # the ids from the root on, whole blocks


class NaiveCache:
    """The same promises by brute force. A path stands for its last block."""

    def __init__(self) -> None:
        self.used: dict[Path, tuple[int, int]] = {}
        self.leased: list[Path] = []
        self.uses = 0

    @property
    def held_tokens(self) -> int:
        return BLOCK_TOKENS * sum(1 for path in self.used if path)

    def trim(self, now_ns: int) -> None:
        while free := [path for path in self.used if not self.is_leased(path)]:
            oldest = min(free, key=lambda path: (self.used[path], -len(path)))
            is_idle = self.used[oldest][0] <= now_ns - IDLE_TTL_NS
            if not (self.held_tokens > CAPACITY_TOKENS or is_idle):
                break
            del self.used[oldest]

    def is_leased(self, path: Path) -> bool:
        return any(leased[: len(path)] == path for leased in self.leased)

    def use(self, path: Path, now_ns: int) -> None:
        self.uses += 1
        for end in range(0, len(path) + 1, BLOCK_TOKENS):
            self.used[path[:end]] = (now_ns, self.uses)

    def move(self, path: Path, to: Path, now_ns: int) -> None:
        self.leased.remove(path)
        self.leased.append(to)
        self.use(to, now_ns)
        self.use(path, now_ns)

    def longest(self, path: Path) -> int:
        held = [end for end in range(0, len(path) + 1, BLOCK_TOKENS) if path[:end] in self.used]
        return max(held, default=0)


class CacheMachine(RuleBasedStateMachine):
    """Few ids, few blocks, little time: every order of leases, growth, idleness and loss."""

    prefixes = Bundle("prefixes")
    leases = Bundle("leases")
    growth = st.lists(st.integers(0, 1), max_size=7).map(tuple)

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(BLOCK_TOKENS, CAPACITY_TOKENS, IDLE_TTL_NS)
        self.naive = NaiveCache()
        self.now_ns = 0

    @rule(target=leases)
    def lease_the_root(self) -> tuple[Block, SimPrefix, Path]:
        block = self.cache.lease(None, "t", self.now_ns)
        self.naive.trim(self.now_ns)
        self.naive.leased.append(())
        self.naive.use((), self.now_ns)
        return block, empty_prefix("t"), ()

    @rule(target=leases, handle=prefixes)
    def lease_a_prefix(self, handle: tuple[SimPrefix, Path]) -> object:
        prefix, ids = handle
        path = ids[: len(ids) - len(prefix.tail)]
        self.naive.trim(self.now_ns)
        if path not in self.naive.used:
            with pytest.raises(PrefixLost) as lost:
                self.cache.lease(prefix, "t", self.now_ns)
            assert lost.value.have_tokens == self.naive.longest(path)
            return self.lease_the_root()
        block = self.cache.lease(prefix, "t", self.now_ns)
        self.naive.leased.append(path)
        self.naive.use(path, self.now_ns)
        assert block.token_count == len(path)
        return block, prefix, ids

    @rule(target=prefixes, leased=consumes(leases), ids=growth, wait_ns=st.integers(0, 9))
    def generate(
        self, leased: tuple[Block, SimPrefix, Path], ids: Path, wait_ns: int
    ) -> tuple[SimPrefix, Path]:
        """Match, hold and release, as a generation does."""
        block, prefix, before = leased
        longer, keys = prefix.extended(array("I", ids), BLOCK_TOKENS)
        base = before[: len(before) - len(prefix.tail)]
        whole = before + ids
        path = whole[: len(whole) - len(longer.tail)]
        assert longer.token_count == len(whole)
        assert path[len(base) :] + tuple(longer.tail) == tuple(prefix.tail) + ids

        self.naive.trim(self.now_ns)
        matched = path[: self.naive.longest(path)]
        self.naive.move(base, matched, self.now_ns)
        block = self.cache.match(block, keys, self.now_ns)
        assert block.token_count == len(matched)

        self.now_ns += wait_ns
        self.naive.move(matched, path, self.now_ns)
        self.naive.trim(self.now_ns)
        block = self.cache.hold(block, keys, self.now_ns)
        assert block.token_count == len(path)

        self.naive.leased.remove(path)
        self.naive.use(path, self.now_ns)
        self.cache.release(block, self.now_ns)
        return longer, whole

    @rule(wait_ns=st.integers(1, 15))
    def wait(self, wait_ns: int) -> None:
        self.now_ns += wait_ns

    @precondition(lambda self: self.naive.used)
    @rule()
    def evict_all(self) -> None:
        self.cache.evict_all()
        for path in [path for path in self.naive.used if not self.naive.is_leased(path)]:
            del self.naive.used[path]

    @invariant()
    def both_hold_the_same(self) -> None:
        assert self.cache.held_tokens == self.naive.held_tokens
        assert set(self.cache._blocks) == {key_of(path) for path in self.naive.used}
        leases = sum(block.leases for block in self.cache._blocks.values())
        assert leases == len(self.naive.leased)
        assert len(self.cache._oldest) <= len(self.cache._blocks)


def key_of(path: Path) -> bytes:
    return empty_prefix("t").extended(array("I", path), BLOCK_TOKENS)[0].key


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=40)


def grow(prefix: SimPrefix, ids: range, block_tokens: int = 4) -> SimPrefix:
    return prefix.extended(array("I", ids), block_tokens)[0]


def test_keys_do_not_depend_on_where_turns_end() -> None:
    once = grow(empty_prefix("t"), range(11))
    twice = grow(grow(empty_prefix("t"), range(3)), range(3, 11))
    assert once.key == twice.key
    assert once.tail == twice.tail == array("I", [8, 9, 10])


def test_keys_depend_on_salt_order_and_parent() -> None:
    keys = {
        grow(empty_prefix("t"), range(8)).key,
        grow(empty_prefix("u"), range(8)).key,
        grow(empty_prefix("t"), range(7, -1, -1)).key,
        grow(empty_prefix("t"), range(4, 8)).key,
        root_key("t"),
    }
    assert len(keys) == 5


def test_the_last_sampled_id_is_not_computed() -> None:
    """It gets its keys and values only when the next token is wanted."""
    whole, keys = empty_prefix("t").extended(array("I", range(8)), 4, uncomputed=1)
    assert len(keys) == 1
    assert whole.tail == array("I", range(4, 8))
    nothing, keys = empty_prefix("t").extended(array("I"), 4, uncomputed=1)
    assert (keys, nothing.token_count) == ([], 0)


@pytest.fixture
def hashed_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every block that is hashed."""
    sizes: list[int] = []

    def hash_blocks(parent: bytes, ids: array[int], block_tokens: int, blocks: int) -> list[bytes]:
        sizes.append(blocks * block_tokens * ids.itemsize)
        return real(parent, ids, block_tokens, blocks)

    real = prefix_cache.block_keys
    monkeypatch.setattr(prefix_cache, "block_keys", hash_blocks)
    return sizes


class CountingBlocks(dict[bytes, Block]):
    """Counts how many blocks are looked at."""

    looked = 0

    def get(self, key: bytes, default: object = None) -> Block | None:  # type: ignore[override]
        self.looked += 1
        return super().get(key)

    def __getitem__(self, key: bytes) -> Block:
        self.looked += 1
        return super().__getitem__(key)


def test_a_turn_costs_its_new_tokens_only(hashed_bytes: list[int]) -> None:
    driver = Driver(replace(PLAIN, context_tokens_max=10**6, cache_tokens=10**6, block_tokens=128))
    driver.submit(make_request("long", sample(10), prompt=range(200_000)))
    driver.run()
    assert sum(hashed_bytes) >= 4 * 199_000
    hashed_bytes.clear()
    blocks = CountingBlocks(driver.scheduler._cache._blocks)
    driver.scheduler._cache._blocks = blocks
    prefix = driver.finish("long").prefix
    driver.submit(make_request("next", sample(100), prompt=range(300), prefix=prefix))
    driver.run()
    assert driver.finish("next").usage.cached_tokens == 199_936  # 200,010 in whole blocks
    assert sum(hashed_bytes) <= 4 * (300 + 100 + 2 * 128)
    assert blocks.looked < 30


def blocks_of(scheduler: Scheduler) -> Iterator[Block]:
    return iter(scheduler._cache._blocks.values())


def test_hit_is_capped_below_the_whole_prompt() -> None:
    driver = Driver(PLAIN)
    for name in ("first", "again"):
        driver.submit(make_request(name, sample(1), prompt=range(8)))
        driver.run()
    assert driver.finish("first").usage.cached_tokens == 0
    assert driver.finish("again").usage.cached_tokens == 7
    assert all(block.leases == 0 for block in blocks_of(driver.scheduler))


def test_generated_tokens_are_cached() -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("first", sample(7), prompt=range(10)))
    driver.run()
    whole = [*range(10), *range(100, 107), 5]
    driver.submit(make_request("again", prompt=whole))
    driver.run()
    assert driver.finish("again").usage.cached_tokens == 16


def test_an_idle_prefix_is_lost() -> None:
    driver = Driver(PLAIN)
    driver.submit(make_request("first", sample(2)))
    driver.run()
    prefix = driver.finish("first").prefix
    driver.now_ns += 61_000_000_000
    with pytest.raises(PrefixLost) as lost:
        driver.submit(make_request("late", prefix=prefix))
    assert lost.value.have_tokens == 0
    assert driver.scheduler.running == driver.scheduler.queued == 0


def test_a_long_chain_is_freed_without_recursion() -> None:
    prefix = empty_prefix("t")
    cache = PrefixCache(1, 10**9, 10**9)
    block = cache.lease(None, "t", 0)
    for _ in range(3):
        prefix, keys = prefix.extended(array("I", range(100_000)), 1)
        block = cache.hold(block, keys, 0)
    cache.release(block, 0)
    cache.evict_all()
    assert cache.held_tokens == 0


def test_a_handle_of_many_turns_is_freed_without_recursion() -> None:
    prefix = empty_prefix("t")
    for turn in range(200_000):
        prefix, _ = prefix.extended(array("I", [turn]), 1)
    assert prefix.token_count == 200_000
    del prefix
