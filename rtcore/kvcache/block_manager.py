"""BlockManager: the free blocks of each cache group and who owns the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ops.errors import EngineError, ResourceError
from rtcore.executor.base import Int32

_FIRST_CAPACITY = 8


@dataclass(slots=True, eq=False)
class SequenceBlocks:
    """The block tables of one sequence, one int32 array a cache group.

    tables[g][:count] are the blocks in the order of the sequence; the rest of an array is room to grow.
    length: tokens that the blocks are reserved for, so count == ceil(length / block_size).
    """

    tables: list[Int32]
    count: int = 0
    length: int = 0


class BlockManager:
    """Hands out blocks of `block_size` slots from one pool a cache group.

    Every method that takes blocks has a `can_` beside it and either does all of it or nothing. Blocks carry
    reference counts, so that sequences may share them. The block given back last is handed out first: memory
    that was never written stays untouched as long as possible.
    """

    def __init__(self, num_blocks: list[int], block_size: int) -> None:
        """num_blocks: size of each group's pool."""
        self.num_blocks = list(num_blocks)
        self.block_size = block_size
        self._free = [list(range(count - 1, -1, -1)) for count in num_blocks]
        self._references = [np.zeros(count, np.int32) for count in num_blocks]

    @property
    def free_blocks(self) -> list[int]:
        """Blocks of each group that nobody owns."""
        return [len(free) for free in self._free]

    @property
    def capacity(self) -> int:
        """Tokens that one sequence can hold when it has the whole cache for itself."""
        return min(self.num_blocks) * self.block_size

    def blocks_for(self, length: int) -> int:
        """Blocks that `length` tokens take in each group."""
        return -(-length // self.block_size)

    def can_allocate(self, length: int, spare: int = 0) -> bool:
        """Whether a new sequence of `length` tokens fits and leaves `spare` blocks of each group free."""
        needed = self.blocks_for(length) + spare
        return all(len(free) >= needed for free in self._free)

    def allocate(self, length: int) -> SequenceBlocks:
        """Blocks for a new sequence of `length` tokens. Raises ResourceError when they do not fit."""
        room = max(_FIRST_CAPACITY, self.blocks_for(length))
        blocks = SequenceBlocks([np.zeros(room, np.int32) for _ in self._free])
        self.append(blocks, length)
        return blocks

    def can_append(self, blocks: SequenceBlocks, length: int) -> bool:
        """Whether `blocks` can grow to `length` tokens."""
        if length <= blocks.count * self.block_size:
            return True
        needed = self.blocks_for(length) - blocks.count
        return all(len(free) >= needed for free in self._free)

    def append(self, blocks: SequenceBlocks, length: int) -> None:
        """Grow `blocks` to `length` tokens; nothing happens when they hold as many already.

        Raises ResourceError when the free blocks do not suffice.
        """
        if length > blocks.count * self.block_size:
            needed = self.blocks_for(length) - blocks.count
            if not self.can_append(blocks, length):
                raise ResourceError(f"{needed} cache blocks are needed, {min(self.free_blocks)} are free.")
            end = blocks.count + needed
            for group, free in enumerate(self._free):
                taken = free[: -needed - 1 : -1]
                del free[-needed:]
                self._references[group][taken] = 1
                if end > len(blocks.tables[group]):
                    blocks.tables[group] = _grown(blocks.tables[group], end)
                blocks.tables[group][blocks.count : end] = taken
            blocks.count = end
        if length > blocks.length:
            blocks.length = length

    def truncate(self, blocks: SequenceBlocks, length: int) -> None:
        """Shrink `blocks` to `length` tokens and give back what lies beyond; the inverse of append."""
        keep = min(blocks.count, self.blocks_for(length))
        for group, table in enumerate(blocks.tables):
            self._release(group, table[keep : blocks.count])
        blocks.count = keep
        blocks.length = min(blocks.length, length)

    def free(self, blocks: SequenceBlocks) -> None:
        """Give back all blocks of a sequence. Safe to call twice."""
        self.truncate(blocks, 0)

    def _release(self, group: int, ids: Int32) -> None:
        """Drop one reference of each block; those that nobody references become free, first block on top."""
        if not len(ids):
            return
        references = self._references[group]
        references[ids] -= 1
        self._free[group].extend(ids[references[ids] == 0][::-1].tolist())

    def check_invariants(self, owners: Iterable[SequenceBlocks]) -> None:
        """Raise EngineError unless every block is free or referenced exactly as often as `owners` list it."""
        owners = list(owners)
        for group, free in enumerate(self._free):
            total = self.num_blocks[group]
            counts = np.zeros(total, np.int64)
            for blocks in owners:
                ids = blocks.tables[group][: blocks.count]
                if len(np.unique(ids)) != len(ids) or (len(ids) and not 0 <= ids.min() <= ids.max() < total):
                    raise EngineError(f"A block table of cache group {group} repeats a block or leaves the pool.")
                counts[ids] += 1
            if not np.array_equal(counts, self._references[group]):
                wrong = np.flatnonzero(counts != self._references[group])[:8].tolist()
                raise EngineError(f"Reference counts of cache group {group} do not add up for blocks {wrong}.")
            if sorted(free) != np.flatnonzero(counts == 0).tolist():
                raise EngineError(f"The free list of cache group {group} is not the set of blocks nobody owns.")
        for blocks in owners:
            if blocks.count != self.blocks_for(blocks.length):
                raise EngineError(f"{blocks.count} blocks are held for {blocks.length} tokens.")


def _grown(table: Int32, needed: int) -> Int32:
    """A copy of `table` with room for at least `needed` blocks, twice the old size for cheap appends."""
    larger = np.zeros(max(needed, 2 * len(table)), np.int32)
    larger[: len(table)] = table
    return larger
