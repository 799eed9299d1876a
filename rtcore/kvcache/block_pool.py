"""BlockPool: the blocks of one cache group, which of them are free, and how often the others are referenced."""

from __future__ import annotations

from array import array

import numpy as np

from rtcore.executor.base import Int32

_CLEAN, _WRITTEN, _IDLE = 0, 1, 2


class BlockPool:
    """Free blocks and reference counts of `count` blocks.

    The block given back last is handed out first, and blocks never used come last: memory that was never
    written stays untouched as long as possible. A block without references is free, unless the prefix cache
    keeps it.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = count
        self.references = array("i", bytes(4 * count))
        self._returned: list[int] = []
        self._fresh = 0
        self._memory = bytearray(count)

    def take(self, count: int) -> list[int]:
        """Free blocks, now with one reference each. The caller has checked that there are as many."""
        returned = self._returned
        used = min(count, len(returned))
        blocks = returned[len(returned) - used :][::-1]
        del returned[len(returned) - used :]
        if used < count:
            blocks += range(self._fresh, self._fresh + count - used)
            self._fresh += count - used
        references, memory = self.references, self._memory
        for block in blocks:
            references[block] = 1
            memory[block] = _WRITTEN
        self.free -= count
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        """Make blocks without references free."""
        self._returned += blocks
        self.free += len(blocks)

    def free_list(self) -> list[int]:
        """All free blocks, in no particular order."""
        return [*self._returned, *range(self._fresh, self.count)]

    def idle_memory(self) -> Int32:
        """Blocks whose memory can be given back: free now and at the previous call, and not taken in between.

        They count as given back from then on.
        """
        memory = np.frombuffer(self._memory, np.uint8)
        returned = np.fromiter(self._returned, np.int32, len(self._returned))
        idle = returned[memory[returned] == _IDLE]
        recent = returned[memory[returned] == _WRITTEN]
        memory[recent] = _IDLE
        memory[idle] = _CLEAN
        return np.sort(idle)

    @property
    def written(self) -> int:
        """Blocks whose memory was written since it was last given back."""
        return self.count - self._memory.count(_CLEAN)
