"""Swapping: whether a preempted sequence's blocks are worth a copy in host memory, and how much of it is taken."""

from __future__ import annotations

import math

from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.sequence_blocks import SequenceBlocks
from rtcore.kvcache.swap import SavedBlocks
from rtcore.scheduler.cost_model import CostModel

_FIRST_GUESS = 4e9
_SMOOTHING = 0.2


class Swapping:
    """Decides by time: a copy out and back at the measured speed against computing anew by the cost model."""

    def __init__(self, model: CostModel, blocks: BlockManager, block_bytes: list[int], budget: int) -> None:
        """block_bytes: of one block of each group. budget: bytes of host memory at most."""
        self._model = model
        self._manager = blocks
        self._block_bytes = block_bytes
        self._budget = budget
        self._bytes_per_second = _FIRST_GUESS
        self.used = 0

    def plan(self, blocks: SequenceBlocks, tokens: int) -> SavedBlocks | None:
        """What to save of a sequence with `tokens` computed tokens; None if it is to be computed anew."""
        end = self._manager.blocks_for(tokens)
        size = sum((end - start) * each for start, each in zip(blocks.starts, self._block_bytes, strict=True))
        if not 0 < size <= self._budget - self.used:
            return None
        if 2 * size / self._bytes_per_second >= self._model.prefill(tokens):
            return None
        self.used += size
        held = [
            table[blocks.row, start:end].copy()
            for table, start in zip(self._manager.tables, blocks.starts, strict=True)
        ]
        return SavedBlocks(tokens, size, list(blocks.starts), held)

    def forget(self, saved: SavedBlocks) -> None:
        """The copy is no longer needed."""
        self.used -= saved.size

    def observe(self, size: int, seconds: float) -> None:
        """A copy of `size` bytes in one direction took so long."""
        if size and seconds > 0:
            rate = math.log(size / seconds) - math.log(self._bytes_per_second)
            self._bytes_per_second *= math.exp(_SMOOTHING * rate)
