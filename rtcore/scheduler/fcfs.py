"""FcfsScheduler: first come, first served, with continuous batching and preemption by recompute."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from itertools import pairwise

from ops.errors import EngineError
from rtcore.config import EngineConfig
from rtcore.kvcache.block_manager import BlockManager
from rtcore.scheduler.base import ScheduledStep, Work
from rtcore.sequence import Sequence, Status


def _order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order


class FcfsScheduler:
    """Each step decodes every running sequence, then fills the token budget with prefill chunks.

    A sequence is admitted when all of its tokens fit into free blocks, in order of arrival and without
    overtaking; while others run, one block for each of them is left free, so that it is not preempted at
    once. When decoding runs out of blocks, the latest arrival gives back all of its blocks and waits again at
    its old place; what it had computed is computed anew, from prompt and generated tokens alike.
    """

    def __init__(self, blocks: BlockManager, config: EngineConfig) -> None:
        self._blocks = blocks
        self._budget = config.max_step_tokens
        self._chunk = config.max_prefill_chunk or config.max_step_tokens
        self._max_sequences = config.max_sequences
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def sequences(self) -> Iterator[Sequence]:
        yield from self._running
        yield from self._waiting

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_order)

    def schedule(self) -> ScheduledStep:
        step = ScheduledStep()
        decodes = self._reserve_decodes(step)
        budget = self._budget - len(decodes)
        chunks: list[Work] = []
        for sequence in self._running:
            if budget > 0 and sequence.pending > 1:
                budget -= self._add_chunk(chunks, sequence, budget, sequence.reserved)
        self._admit(chunks, budget)
        step.works = decodes
        step.works += [work for work in chunks if work.tokens == 1]
        step.works += [work for work in chunks if work.tokens > 1]
        return step

    def _reserve_decodes(self, step: ScheduledStep) -> list[Work]:
        """A slot for the newest token of every running sequence, the latest arrivals preempted if need be."""
        works: list[Work] = []
        index = 0
        while index < len(self._running):
            sequence = self._running[index]
            index += 1
            if sequence.pending != 1 or sequence.blocks is None:
                continue
            while not self._blocks.can_append(sequence.blocks, sequence.length):
                victim = self._running[-1]
                self._preempt(victim)
                step.preempted += 1
                if victim is sequence:
                    return works
            reserved = sequence.blocks.length
            self._blocks.append(sequence.blocks, sequence.length)
            works.append(Work(sequence, 1, reserved))
        return works

    def _add_chunk(self, chunks: list[Work], sequence: Sequence, budget: int, reserved: int) -> int:
        """Append the next prefill chunk of a sequence; the tokens that it takes."""
        tokens = min(sequence.pending, self._chunk, budget)
        chunks.append(Work(sequence, tokens, reserved))
        return tokens

    def _admit(self, chunks: list[Work], budget: int) -> None:
        """Start waiting sequences as long as budget, places and blocks last."""
        while self._waiting and budget > 0 and len(self._running) < self._max_sequences:
            sequence = self._waiting[0]
            if not self._blocks.can_allocate(sequence.length, spare=len(self._running)):
                return
            del self._waiting[0]
            sequence.blocks = self._blocks.allocate(sequence.length)
            sequence.status = Status.RUNNING
            insort(self._running, sequence, key=_order)
            budget -= self._add_chunk(chunks, sequence, budget, -1)

    def _preempt(self, sequence: Sequence) -> None:
        sequence.preemptions += 1
        self._requeue(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        """Running to waiting: all blocks given back, nothing computed."""
        self._running.remove(sequence)
        self._release(sequence)
        sequence.status = Status.WAITING
        self.add(sequence)

    def _release(self, sequence: Sequence) -> None:
        if sequence.blocks is not None:
            self._blocks.free(sequence.blocks)
        sequence.blocks = None
        sequence.computed = 0

    def commit(self, works: list[Work]) -> None:
        for work in works:
            work.sequence.computed += work.tokens

    def rollback(self, works: list[Work]) -> None:
        for work in works:
            sequence = work.sequence
            if sequence.blocks is None:
                continue
            if work.reserved < 0:
                self._requeue(sequence)
            else:
                self._blocks.truncate(sequence.blocks, work.reserved)

    def remove(self, sequence: Sequence) -> None:
        if sequence.status is Status.RUNNING:
            self._running.remove(sequence)
        elif sequence.status is Status.WAITING:
            self._waiting.remove(sequence)
        self._release(sequence)
        sequence.status = Status.FINISHED

    def check_invariants(self) -> None:
        owners = [sequence.blocks for sequence in self._running if sequence.blocks is not None]
        if len(owners) != len(self._running) or len(owners) > self._max_sequences:
            raise EngineError("A running sequence holds no blocks, or more run than may.")
        for sequence in self._running:
            if sequence.status is not Status.RUNNING or not 0 <= sequence.computed < sequence.length:
                raise EngineError(f"Running sequence {sequence.request.id} has an impossible state.")
            if sequence.computed > sequence.reserved:
                raise EngineError(f"Sequence {sequence.request.id} has computed more tokens than it has slots.")
        for sequence in self._waiting:
            if sequence.status is not Status.WAITING or sequence.blocks is not None or sequence.computed:
                raise EngineError(f"Waiting sequence {sequence.request.id} has an impossible state.")
        for queue in (self._running, self._waiting):
            if any(first.order >= second.order for first, second in pairwise(queue)):
                raise EngineError("A queue is out of order.")
        self._blocks.check_invariants(owners)
