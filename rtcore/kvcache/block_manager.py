"""BlockManager: the block tables of all sequences and the references that they hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from ops.errors import ResourceError
from rtcore.executor.base import Int32, Int64
from rtcore.kvcache.block_pool import BlockPool
from rtcore.kvcache.counters import CacheCounters
from rtcore.kvcache.hash_chain import CacheKey, HashChain
from rtcore.kvcache.match import Match
from rtcore.kvcache.policy import CachePolicy
from rtcore.kvcache.prefix_cache import PrefixCache
from rtcore.kvcache.prefix_index import NONE
from rtcore.kvcache.publisher import Publisher
from rtcore.kvcache.references import References
from rtcore.kvcache.sequence_blocks import BlockCopy, SequenceBlocks
from rtcore.kvcache.swap import SavedBlocks


class BlockManager:
    """Hands out blocks of `block_size` slots from one pool a cache group, shares and caches them.

    Every method that takes blocks has a `can_` beside it and either does all of it or nothing. A block may be
    shared by any number of sequences; one that wants to write into a block where others may read what it would
    overwrite gets a copy of its own first. tables[g] is int32 [sequences, columns]; what the table of a
    sequence holds outside of starts[g]..count means nothing, but is a valid block.
    """

    def __init__(
        self,
        num_blocks: Sequence[int],
        block_size: int,
        *,
        max_sequences: int,
        max_length: int,
        windows: Sequence[int] = (),
        policy: CachePolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """num_blocks: size of each group's pool. windows: tokens of each group's window, 0 for none.
        max_length: tokens of one sequence."""
        self.num_blocks = list(num_blocks)
        self.block_size = block_size
        self.windows = list(windows) or [0] * len(self.num_blocks)
        self.policy = policy or CachePolicy()
        self.pools = [BlockPool(count) for count in self.num_blocks]
        columns = self.blocks_for(min(max_length, self.capacity))
        running = max_sequences * columns
        self.cache = PrefixCache(self.pools, block_size, self.windows, self.policy, clock, running)
        self._longest = columns * block_size
        self.tables: list[Int32] = [np.zeros((max_sequences, columns), np.int32) for _ in self.num_blocks]
        self._windowed = [group for group, window in enumerate(self.windows) if window]
        self._references = References(self.pools, self.cache)
        self._publisher = Publisher(self.cache, self._references, self.tables, block_size, self._windowed)
        self.backlog = self._publisher.backlog
        self._rows = list(range(max_sequences - 1, -1, -1))
        self._copies: list[BlockCopy] = []
        self.live: set[SequenceBlocks] = set()

    @property
    def counters(self) -> CacheCounters:
        return self.cache.counters

    @property
    def free_blocks(self) -> list[int]:
        """Blocks of each group that can be had: free ones, and cached ones that nobody uses."""
        return [self.available(group) for group in range(len(self.pools))]

    @property
    def cached_blocks(self) -> list[int]:
        """Blocks of each group that are cached and that nobody uses."""
        return [self.cache.evictable(group) for group in range(len(self.pools))]

    @property
    def capacity(self) -> int:
        """Tokens that one sequence can hold when it has the whole cache for itself."""
        return min(self.num_blocks) * self.block_size

    def available(self, group: int) -> int:
        return self.pools[group].free + self.cache.evictable(group)

    def blocks_for(self, length: int) -> int:
        """Blocks that `length` tokens take in each group."""
        return -(-length // self.block_size)

    def new_chain(self, key: CacheKey) -> HashChain:
        return HashChain(key, self.block_size, self.policy.digest)

    def match(self, chain: HashChain, tokens: Int64) -> Match:
        """The longest cached beginning of `tokens`.

        What running sequences have of it gets its nodes first, if they have none yet.
        """
        nodes = self.cache.walk(chain, tokens)
        while len(self.backlog) and self._publisher.publish_along(chain.key, nodes, tokens):
            nodes = self.cache.walk(chain, tokens)
        return self.cache.match(chain, tokens, nodes)

    def without_tail(self, match: Match, length: int) -> Match:
        """The match without the beginning of a block, if a sequence of `length` tokens needs the whole cache."""
        if not match.tail_tokens or self.blocks_for(length) < min(self.num_blocks):
            return match
        return Match(match.nodes, tokens=len(match.nodes) * self.block_size)

    def needed(self, length: int, match: Match, chunk: int) -> list[int]:
        """Available blocks of each group that a sequence of `length` tokens takes, if it starts from a match.

        chunk: tokens of one step at most, which a group with a window holds beside its window.
        """
        index = self.cache.index
        nodes = [*match.nodes, match.tail] if match.tail_tokens else match.nodes
        needed = []
        for group, pool in enumerate(self.pools):
            column = index.blocks[group]
            start = self.cache.first_needed(group, match.tokens)
            references = pool.references
            idle = len([node for node in nodes[start:] if not references[column[node]]])
            needed.append(idle + self.promised(group, length, len(match.nodes), chunk))
        return needed

    def promised(self, group: int, length: int, count: int, chunk: int) -> int:
        """Blocks of a group that a sequence with `count` of them still takes at once until `length` tokens."""
        needed = self.blocks_for(length) - count
        window = self.windows[group]
        return min(needed, self.blocks_for(window + chunk) + 1) if window else needed

    def open(self, chain: HashChain, match: Match) -> SequenceBlocks:
        """Blocks for a new sequence that takes over what the match found, and references all of it."""
        blocks = SequenceBlocks(
            row=self._rows.pop(),
            chain=chain,
            namespace=self.cache.namespaces.join(chain.key),
            starts=[self.cache.first_needed(group, match.tokens) for group in range(len(self.pools))],
            count=self.blocks_for(match.tokens),
            length=match.tokens,
            nodes=match.nodes,
            cacheable=self.policy.enabled,
        )
        index = self.cache.index
        nodes = [*match.nodes, match.tail] if match.tail_tokens else match.nodes
        index.hit(nodes)
        for group, start in enumerate(blocks.starts):
            column = index.blocks[group]
            held = [column[node] for node in nodes[start:]]
            self._references.hold(group, held)
            self.tables[group][blocks.row, start : blocks.count] = held
        blocks.nodes = list(match.nodes)
        blocks.writable = 0 if match.tail_tokens else blocks.count * self.block_size
        self.live.add(blocks)
        return blocks

    def restore(self, chain: HashChain, saved: SavedBlocks) -> SequenceBlocks:
        """Blocks for a sequence whose content is to be loaded from host memory; names them in `saved`."""
        blocks = SequenceBlocks(
            row=self._rows.pop(),
            chain=chain,
            namespace=self.cache.namespaces.join(chain.key),
            starts=list(saved.starts),
            count=self.blocks_for(saved.tokens),
            length=saved.tokens,
            cacheable=self.policy.enabled,
        )
        blocks.writable = blocks.count * self.block_size
        for group, start in enumerate(blocks.starts):
            taken = self._references.take(group, blocks.count - start)
            self.tables[group][blocks.row, start : blocks.count] = taken
            saved.blocks[group] = np.array(taken, np.int32)
        self.live.add(blocks)
        return blocks

    def can_append(self, blocks: SequenceBlocks, length: int) -> bool:
        """Whether `blocks` can grow to `length` tokens; never beyond the columns of the tables."""
        if length <= blocks.writable:
            return True
        if length > self._longest:
            return False
        needed = self.blocks_for(length) - blocks.count + (blocks.writable < blocks.length)
        for group, pool in enumerate(self.pools):
            if pool.free < needed and self.available(group) < needed:
                return False
        return True

    def append(self, blocks: SequenceBlocks, length: int, begin: int) -> None:
        """Grow `blocks` to `length` tokens, of which those from `begin` on are going to be written.

        Raises ResourceError when the available blocks do not suffice; see `take_copies` for what to do before
        the step runs.
        """
        if length > blocks.writable:
            if not self.can_append(blocks, length):
                raise ResourceError(f"The cache has no blocks left for a sequence of {length} tokens.")
            if blocks.writable < blocks.length:
                self._own_last(blocks, begin)
            end = self.blocks_for(length)
            if end > blocks.count:
                for group, table in enumerate(self.tables):
                    table[blocks.row, blocks.count : end] = self._references.take(group, end - blocks.count)
                blocks.count = end
            blocks.writable = blocks.count * self.block_size
        blocks.length = max(blocks.length, length)

    def can_add_blocks(self, count: int) -> bool:
        """Whether `count` sequences can have one more block each, of every group."""
        for group, pool in enumerate(self.pools):
            if pool.free < count and self.available(group) < count:
                return False
        return True

    def add_blocks(self, growing: list[SequenceBlocks]) -> None:
        """Room for one more token of each sequence, all of which have written their blocks to the end.

        What decoding does every step, so it is done for all at once. Raises ResourceError when the available blocks
        or the columns of the tables do not suffice.
        """
        longest = max([blocks.length for blocks in growing], default=0)
        if longest >= self._longest or not self.can_add_blocks(len(growing)):
            raise ResourceError(
                f"The cache has no blocks left for {len(growing)} sequences that need one more each."
            )
        for group, table in enumerate(self.tables):
            for blocks, block in zip(growing, self._references.take(group, len(growing)), strict=True):
                table[blocks.row, blocks.count] = block
        for blocks in growing:
            blocks.count += 1
            blocks.length += 1
            blocks.writable += self.block_size

    def _own_last(self, blocks: SequenceBlocks, begin: int) -> None:
        """Copy the last block, unless nobody else references it and nobody could find what is overwritten."""
        column, offset = divmod(begin, self.block_size)
        for group, pool in enumerate(self.pools):
            block = int(self.tables[group][blocks.row, column])
            node = self.cache.node_of[group][block]
            if pool.references[block] == 1 and (node == NONE or self.cache.index.filled[node] <= offset):
                continue
            own = self._references.take(group, 1)[0]
            self._copies.append(BlockCopy(group, block, own))
            self.counters.copies += 1
            self.tables[group][blocks.row, column] = own
            self._references.drop(group, [block])

    def take_copies(self) -> list[BlockCopy]:
        """The copies to make, in this order, before anything is written; they are then forgotten here."""
        copies, self._copies = self._copies, []
        return copies

    def commit(self, blocks: SequenceBlocks, tokens: Int64, tail: bool = False) -> None:
        """The K and V of `tokens`, the sequence's from its start, are in its blocks.

        Full blocks can be shared from now on, with `tail` also the beginning of a block that is not full.
        Blocks that no later token of the sequence sees are given back. Nobody may change the `tokens` any more.
        """
        blocks.computed = tokens
        if blocks.cacheable:
            self._publisher.publish(blocks, tail)
        if self._windowed:
            self._leave_windows(blocks)

    def note(self, blocks: SequenceBlocks, tokens: Int64, tail: bool = False) -> None:
        """The same as `commit` for a sequence that goes on: all of it can be shared no less, but what that takes is
        done when somebody asks for it, or when the sequence ends."""
        blocks.computed = tokens
        if blocks.place is not None:
            blocks.tail |= tail
        elif blocks.cacheable:
            self._publisher.postpone(blocks, tail)
        if self._windowed:
            if blocks.place is not None and self._leaves_nodes(blocks):
                self._publisher.publish(blocks)
            self._leave_windows(blocks)

    def distrust(self, blocks: SequenceBlocks) -> None:
        """Nothing of a sequence that is not in the prefix cache yet may get there: it may be wrong."""
        blocks.cacheable = blocks.tail = False
        self.backlog.discard(blocks)

    def _leaves_nodes(self, blocks: SequenceBlocks) -> bool:
        """Whether a window moves on from the last node of a sequence, or from a block that has none yet."""
        kept = max(1, len(blocks.nodes))
        return any(self.cache.first_needed(group, len(blocks.computed)) >= kept for group in self._windowed)

    def _leave_windows(self, blocks: SequenceBlocks) -> None:
        """Give back what no later token of a sequence sees."""
        for group in self._windowed:
            needed = min(self.cache.first_needed(group, len(blocks.computed)), blocks.count)
            for block in self.tables[group][blocks.row, blocks.starts[group] : needed].tolist():
                self._references.drop(group, [block])
            blocks.starts[group] = max(blocks.starts[group], needed)

    def truncate(self, blocks: SequenceBlocks, length: int) -> None:
        """Shrink `blocks` to `length` tokens and give back what lies beyond; the inverse of append."""
        keep = min(blocks.count, self.blocks_for(length))
        for group in self.cache.release_order:
            first = max(keep, blocks.starts[group])
            self._references.drop(group, self.tables[group][blocks.row, first : blocks.count][::-1].tolist())
        blocks.count = keep
        blocks.length = min(blocks.length, length)
        blocks.writable = min(blocks.writable, keep * self.block_size)

    def close(self, blocks: SequenceBlocks) -> None:
        """Give back all blocks of a sequence, the last one first; full ones stay cached. Safe to call twice."""
        if blocks not in self.live:
            return
        if blocks.place is not None:
            self._publisher.publish(blocks)
        self.truncate(blocks, 0)
        self.live.remove(blocks)
        self.cache.namespaces.leave(blocks.namespace)
        self._rows.append(blocks.row)
