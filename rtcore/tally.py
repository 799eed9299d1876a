"""Tally: what an engine has done since it started, and its statistics."""

from __future__ import annotations

import time

from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.report import cache_stats
from rtcore.overlap import Overlap
from rtcore.request import FinishReason
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.stats import EngineStats
from rtcore.step_runner import StepRunner
from rtcore.transfers import Transfers


class Tally:
    """Counts, and reads the counts of an engine's parts. Attributes: generated tokens, preemptions."""

    def __init__(
        self,
        blocks: BlockManager,
        scheduler: LaneScheduler,
        runner: StepRunner,
        overlap: Overlap,
        transfers: Transfers,
        block_bytes: list[int],
    ) -> None:
        self._blocks = blocks
        self._scheduler = scheduler
        self._runner = runner
        self._overlap = overlap
        self._transfers = transfers
        self._block_bytes = block_bytes
        self._started = time.time()
        self.generated = self.preemptions = 0
        self._finished: dict[str, int] = dict.fromkeys(("stop", "length", "cancelled", "error"), 0)

    def finished(self, reason: FinishReason) -> None:
        """A sequence has ended."""
        self._finished[reason] += 1

    def stats(self, preparing: int, context_length: int) -> EngineStats:
        """preparing: requests that wait for their grammar."""
        drafts, drafts_accepted = self._scheduler.drafts
        return EngineStats(
            waiting=self._scheduler.waiting + preparing,
            running=self._scheduler.running,
            blocks_total=self._blocks.num_blocks,
            blocks_free=self._blocks.free_blocks,
            cache=cache_stats(self._blocks, self._block_bytes),
            load=self._scheduler.load_stats(),
            block_size=self._blocks.block_size,
            context_length=context_length,
            steps=self._runner.steps,
            steps_ahead=self._overlap.ahead,
            aborted_steps=self._runner.aborted,
            tokens_prefilled=self._runner.prefilled,
            tokens_generated=self.generated,
            preemptions=self.preemptions,
            drafts=drafts,
            drafts_accepted=drafts_accepted,
            swaps=self._transfers.saves,
            swapped_bytes=self._scheduler.swapping.used,
            finished=dict(self._finished),
            started=self._started,
        )
