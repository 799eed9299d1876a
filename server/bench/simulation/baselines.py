"""The schedulers that the simulator compares with: static batching, and first come first served without lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rtcore.config import EngineConfig
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.match import Match
from rtcore.scheduler.base import ScheduledStep, Scheduler, Work
from rtcore.sequence import Sequence, Status, held
from server.bench.simulation.machine import MAX_SEQUENCES, MAX_STEP_TOKENS


class StaticBatching:
    """Takes as many requests as fit, runs them until the last one has ended, then takes the next ones.

    Prompts are computed whole, in order, within the step's limit of tokens; nothing is shared or cached.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._queue: deque[Sequence] = deque()
        self._batch: dict[Sequence, None] = {}

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._batch)

    def add(self, sequence: Sequence) -> None:
        self._queue.append(sequence)

    def schedule(self) -> ScheduledStep:
        if not self._batch:
            self._fill()
        works: list[Work] = []
        budget = MAX_STEP_TOKENS
        for sequence in self._batch:
            tokens = min(sequence.pending, budget)
            if tokens:
                blocks = held(sequence)
                works.append(Work(sequence, tokens, blocks.length, tokens == sequence.pending))
                budget -= tokens
        return ScheduledStep(works)

    def _fill(self) -> None:
        room = self._blocks.available(0)
        while self._queue and len(self._batch) < MAX_SEQUENCES:
            sequence = self._queue[0]
            room -= self._blocks.blocks_for(sequence.limit)
            if room < 0:
                return
            self._queue.popleft()
            sequence.blocks = self._blocks.open(sequence.chain, Match([]))
            self._blocks.append(sequence.blocks, sequence.limit, 0)
            sequence.status = Status.RUNNING
            self._batch[sequence] = None

    def commit(self, works: list[Work]) -> None:
        for work in works:
            work.sequence.computed += work.tokens

    def remove(self, sequence: Sequence) -> None:
        del self._batch[sequence]
        self._blocks.close(held(sequence))
        sequence.status = Status.FINISHED


class FirstComeFirstServed:
    """Continuous batching in order of arrival: decodes first, then prompts up to the step's limit of tokens.

    One queue for all, no lanes, no target for a step's time; the prefix cache is used as far as it is full.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._queue: deque[Sequence] = deque()
        self._running: dict[Sequence, None] = {}
        self._promised = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        self._queue.append(sequence)

    def schedule(self) -> ScheduledStep:
        works: list[Work] = []
        budget = MAX_STEP_TOKENS - len(self._running)
        for sequence in self._running:
            tokens = 1 if sequence.pending == 1 else min(sequence.pending, budget)
            if tokens:
                works.append(self._work(sequence, tokens))
                budget -= tokens if tokens > 1 else 0
        while self._queue and budget > 0 and len(self._running) < MAX_SEQUENCES:
            sequence = self._queue[0]
            needed = self._blocks.blocks_for(sequence.limit)
            if self._promised + needed > self._blocks.num_blocks[0]:
                break
            self._queue.popleft()
            self._promised += needed
            match = self._blocks.match(sequence.chain, sequence.tokens[: sequence.length - 1])
            sequence.blocks = self._blocks.open(sequence.chain, match)
            sequence.computed = match.tokens
            sequence.status = Status.RUNNING
            self._running[sequence] = None
            tokens = min(sequence.pending, budget)
            works.append(self._work(sequence, tokens))
            budget -= tokens
        self._blocks.take_copies()
        return ScheduledStep(works)

    def _work(self, sequence: Sequence, tokens: int) -> Work:
        blocks = held(sequence)
        work = Work(sequence, tokens, blocks.length, tokens == sequence.pending)
        self._blocks.append(blocks, sequence.computed + tokens, sequence.computed)
        return work

    def commit(self, works: list[Work]) -> None:
        for work in works:
            sequence = work.sequence
            sequence.computed += work.tokens
            if work.tokens > 1 or not sequence.computed % self._blocks.block_size:
                self._blocks.commit(held(sequence), sequence.tokens[: sequence.computed])

    def remove(self, sequence: Sequence) -> None:
        del self._running[sequence]
        self._promised -= self._blocks.blocks_for(sequence.limit)
        self._blocks.close(held(sequence))
        sequence.status = Status.FINISHED


def static_batching(blocks: BlockManager, config: EngineConfig, clock: Callable[[], float]) -> Scheduler:
    return StaticBatching(blocks)


def first_come_first_served(blocks: BlockManager, config: EngineConfig, clock: Callable[[], float]) -> Scheduler:
    return FirstComeFirstServed(blocks)
