"""The block prefix cache: which prompts the engine need not compute again.

    salt ── block 0 ── block 1 ── block 2          a tree: the key of a block is a hash of its
                    └─ block 1' ── block 2'        parent's key and its own ids

Only full blocks are cached, generated tokens too; a tenant's salt is the root of its own tree. An
ancestor is never older than its descendants and is evicted after them: where a block is held, all
before it are. Therefore a turn needs to look at its new tokens only, however long the context is:
its handle, a `SimPrefix`, carries the key of its last block and the ids after that.

Running generations lease the block they stand on, and what is leased stays. Everything else goes
by age: least recently used first when the capacity is passed, all that is idle past its time.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from heapq import heappop, heappush, heapreplace

from msgspec import Struct

from agentloop.engine.api import Prefix, PrefixLost, TokenIds

_KEY_BYTES = 16

# The keys of one turn's blocks, after those of the turns before it: one small tuple a turn.
Lineage = tuple["Lineage | None", tuple[bytes, ...]]


class SimPrefix(Struct, frozen=True):
    """A handle on tokens; it holds nothing in the cache.

    Attributes:
        salt: whose tree the tokens are in.
        token_count: how many tokens it stands for.
        key: the last full block that was computed.
        tail: the ids after that block; the last sampled id is always among them, because a token
            is computed only when the next one is wanted.
        lineage: the keys of all its blocks, to find what is left when the last one is gone.
    """

    salt: str
    token_count: int
    key: bytes
    tail: TokenIds[int]
    lineage: Lineage | None = None

    def extended(
        self, ids: TokenIds[int], block_tokens: int, *, uncomputed: int = 0
    ) -> tuple[SimPrefix, list[bytes]]:
        """The handle on these tokens and `ids`, and the keys of the full blocks that this adds.

        The last `uncomputed` ids belong to no block yet.
        """
        tail = self.tail + ids
        keys = block_keys(self.key, tail, block_tokens, (len(tail) - uncomputed) // block_tokens)
        prefix = SimPrefix(
            salt=self.salt,
            token_count=self.token_count + len(ids),
            key=keys[-1] if keys else self.key,
            tail=tail[len(keys) * block_tokens :],
            lineage=(self.lineage, tuple(keys)) if keys else self.lineage,
        )
        return prefix, keys


class Block(Struct, gc=False):
    """One cached block. `used` is the time and the number of its last use."""

    key: bytes
    parent: bytes | None  # a key, for a chain of objects would be freed by deep recursion
    token_count: int  # of the whole chain up to here
    used: tuple[int, int] = (0, 0)
    children: int = 0
    leases: int = 0
    is_offered: bool = False


def root_key(salt: str) -> bytes:
    """Where the tree of a tenant begins."""
    return blake2b(salt.encode(), digest_size=_KEY_BYTES, person=b"salt").digest()


def block_keys(parent: bytes, ids: TokenIds[int], block_tokens: int, blocks: int) -> list[bytes]:
    """The keys of the first `blocks` blocks that `ids` make after `parent`."""
    keys = []
    content = memoryview(ids).cast("B")
    size = block_tokens * ids.itemsize
    for start in range(0, blocks * size, size):
        block = blake2b(parent, digest_size=_KEY_BYTES)
        block.update(content[start : start + size])
        parent = block.digest()
        keys.append(parent)
    return keys


def empty_prefix(salt: str) -> SimPrefix:
    """The handle on no tokens."""
    return SimPrefix(salt=salt, token_count=0, key=root_key(salt), tail=array("I"))


class PrefixCache:
    """Held blocks by key, and a heap of those that may be evicted.

    A heap entry says when its block was last used at the earliest; uses after that are looked up
    when the entry comes to the top, so a use costs nothing. All leaves without a lease are in it.

    Leases are in pairs: `lease` begins one, `match` and `hold` move it, `release` ends it.
    """

    def __init__(self, block_tokens: int, capacity_tokens: int, idle_ttl_ns: int) -> None:
        self.held_tokens = 0
        self._block_tokens = block_tokens
        self._capacity_tokens = capacity_tokens
        self._idle_ttl_ns = idle_ttl_ns
        self._blocks: dict[bytes, Block] = {}
        self._oldest: list[tuple[tuple[int, int], bytes]] = []
        self._uses = 0

    def lease(self, prefix: Prefix | None, salt: str, now_ns: int) -> Block:
        """The last block of `prefix`, leased; the root of the tree where there is none.

        Raises:
            PrefixLost: that block is not held any more, or is another tenant's.
        """
        self._trim(now_ns)
        if prefix is None:
            root = root_key(salt)
            block = self._blocks.setdefault(root, Block(root, None, 0))
        elif not isinstance(prefix, SimPrefix) or prefix.salt != salt:
            raise PrefixLost(0)
        elif (found := self._blocks.get(prefix.key)) is None:
            raise PrefixLost(self._left_of(prefix))
        else:
            block = found
        block.leases += 1
        self._use(block, now_ns)
        return block

    def match(self, block: Block, keys: list[bytes], now_ns: int) -> Block:
        """Move a lease along `keys` to the last block that is held."""
        self._trim(now_ns)
        last = block
        for key in keys:
            found = self._blocks.get(key)
            if found is None:
                break
            last = found
        return self._move(block, last, now_ns)

    def hold(self, block: Block, keys: list[bytes], now_ns: int) -> Block:
        """Hold the blocks `keys` after `block`, and move its lease to the last of them."""
        last = block
        for key in keys:
            found = self._blocks.get(key)
            if found is None:
                found = Block(key, last.key, last.token_count + self._block_tokens)
                self._blocks[key] = found
                self.held_tokens += self._block_tokens
                last.children += 1
            last = found
        last = self._move(block, last, now_ns)
        self._trim(now_ns)
        return last

    def release(self, block: Block, now_ns: int) -> None:
        """End a lease."""
        block.leases -= 1
        self._use(block, now_ns)

    def evict_all(self) -> None:
        """Evict whatever is not leased."""
        while (block := self._candidate()) is not None:
            self._evict(block)

    def _move(self, block: Block, to: Block, now_ns: int) -> Block:
        to.leases += 1
        self._use(to, now_ns)
        self.release(block, now_ns)
        return to

    def _use(self, block: Block, now_ns: int) -> None:
        self._uses += 1
        block.used = max(block.used, (now_ns, self._uses))
        self._offer(block)

    def _offer(self, block: Block) -> None:
        """Let the block be evicted in its turn, if it is a leaf that nobody leases."""
        if not (block.children or block.leases or block.is_offered):
            block.is_offered = True
            heappush(self._oldest, (block.used, block.key))

    def _trim(self, now_ns: int) -> None:
        """Evict what is over the capacity or idle for too long."""
        idle_since_ns = now_ns - self._idle_ttl_ns
        while (block := self._candidate()) is not None and (
            self.held_tokens > self._capacity_tokens or block.used[0] <= idle_since_ns
        ):
            self._evict(block)

    def _candidate(self) -> Block | None:
        """The block to evict next; its entry is then at the top of the heap."""
        while self._oldest:
            used, key = self._oldest[0]
            block = self._blocks[key]
            if block.children or block.leases:
                heappop(self._oldest)
                block.is_offered = False
            elif block.used > used:
                heapreplace(self._oldest, (block.used, key))
            else:
                return block
        return None

    def _evict(self, candidate: Block) -> None:
        heappop(self._oldest)
        del self._blocks[candidate.key]
        if candidate.parent is None:
            return
        self.held_tokens -= self._block_tokens
        parent = self._blocks[candidate.parent]
        parent.children -= 1
        parent.used = max(parent.used, candidate.used)
        self._offer(parent)

    def _left_of(self, prefix: SimPrefix) -> int:
        """How many tokens of a lost prefix are still held."""
        lineage = prefix.lineage
        while lineage is not None:
            lineage, keys = lineage
            for key in reversed(keys):
                if key in self._blocks:
                    return self._blocks[key].token_count
        return 0
