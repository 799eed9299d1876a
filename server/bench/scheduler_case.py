"""SchedulerCase: steps of the real scheduler, cache and batch builder without a model, timed on the host."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.request import EngineRequest
from rtcore.scheduler.batch import BatchBuilder
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.sequence import Sequence

BLOCK_SIZE = 16
PROMPT_TOKENS = 200
ANSWER_TOKENS = 200
CACHED_SEQUENCE_BLOCKS = 1000
WARM_UP_STEPS = 300
VOCABULARY = 32_000


class SchedulerCost(msgspec.Struct, frozen=True):
    """Microseconds that the host spends on a step with `sequences` running ones, `waiting` waiting ones and
    `cached_blocks` blocks in the prefix cache. longest: of all steps."""

    sequences: int
    waiting: int
    cached_blocks: int
    steps: int
    mean: float
    median: float
    p99: float
    longest: float


class SchedulerCase:
    """A steady state: every sequence has a prompt of its own and ends after a fixed number of tokens, another
    one takes its place, and the queue and the cache stay as full as they are."""

    def __init__(self, sequences: int, waiting: int, cached_blocks: int, seed: int) -> None:
        self._config = EngineConfig(
            max_sequences=sequences, max_step_tokens=8192, max_queue=10**6, swap_bytes=0, target_step_ms=1e6
        )
        self._random = np.random.default_rng(seed)
        room = sequences * 2 * (PROMPT_TOKENS + ANSWER_TOKENS) // BLOCK_SIZE
        self._blocks = BlockManager(
            [cached_blocks + room],
            BLOCK_SIZE,
            max_sequences=sequences,
            max_length=CACHED_SEQUENCE_BLOCKS * BLOCK_SIZE,
        )
        self._cached = cached_blocks
        self._waiting = waiting
        self._number = 0
        self._fill_cache(cached_blocks)
        self._scheduler = LaneScheduler(self._blocks, self._config)
        self._batch = BatchBuilder(max_tokens=8192, block_size=BLOCK_SIZE, tables=self._blocks.tables)
        for _ in range(sequences + waiting):
            self._submit()

    def _fill_cache(self, cached_blocks: int) -> None:
        """Cache blocks as if sequences had left them."""
        while cached_blocks > 0:
            length = min(cached_blocks, CACHED_SEQUENCE_BLOCKS) * BLOCK_SIZE
            tokens = self._random.integers(0, VOCABULARY, length)
            chain = self._blocks.new_chain(CacheKey("bench"))
            blocks = self._blocks.open(chain, self._blocks.match(chain, tokens))
            self._blocks.append(blocks, length, 0)
            self._blocks.commit(blocks, tokens)
            self._blocks.close(blocks)
            cached_blocks -= length // BLOCK_SIZE

    def _submit(self) -> None:
        self._number += 1
        prompt = self._random.integers(0, VOCABULARY, PROMPT_TOKENS).tolist()
        answer = int(self._random.integers(ANSWER_TOKENS // 2, ANSWER_TOKENS * 3 // 2))
        request = EngineRequest(str(self._number), prompt, SamplingParams(max_tokens=answer, ignore_eos=True))
        chain = self._blocks.new_chain(CacheKey("bench"))
        now = time.monotonic()
        self._scheduler.add(Sequence.create(request, chain, self._number, 0, frozenset(), now))

    def measure(self, steps: int) -> SchedulerCost:
        for _ in range(WARM_UP_STEPS):
            self._step()
        micros = np.array([self._step() for _ in range(steps)]) * 1e6
        return SchedulerCost(
            sequences=self._config.max_sequences,
            waiting=self._waiting,
            cached_blocks=self._cached,
            steps=steps,
            mean=float(micros.mean()),
            median=float(np.median(micros)),
            p99=float(np.percentile(micros, 99)),
            longest=float(micros.max()),
        )

    def _step(self) -> float:
        """Seconds of one step: select, allocate, build the arrays, commit, and free what ended."""
        began = time.perf_counter()
        step = self._scheduler.schedule()
        inputs = self._batch.build(step.works)
        self._scheduler.observe(step.works, 0.01)
        sampling = [work.sequence for work in step.works if work.samples]
        self._scheduler.commit(step.works)
        seconds = time.perf_counter() - began
        ended = [sequence for sequence in sampling if sequence.append(int(inputs.plan[0]) % VOCABULARY)]
        began = time.perf_counter()
        for sequence in ended:
            self._scheduler.remove(sequence)
        seconds += time.perf_counter() - began
        for _ in ended:
            self._submit()
        return seconds
