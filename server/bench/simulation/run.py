"""One run of a trace through a scheduler and a cache, in virtual time."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ops.errors import EngineError
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.request import EngineRequest
from rtcore.scheduler.base import ScheduledStep, Scheduler, Work
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.sequence import Sequence
from server.bench.simulation.machine import BLOCK_SIZE, MAX_SEQUENCES, MAX_STEP_TOKENS, NUM_BLOCKS, step_seconds
from server.bench.simulation.traces import TraceRequest, next_turn

MakeScheduler = Callable[[BlockManager, EngineConfig, Callable[[], float]], Scheduler]

TARGET_STEP_MS = 24.0
LONGEST_SEQUENCE = 110_000
_SAMPLE_EVERY = 8
_IDLE_SECONDS = 1e-3
_SMALLEST_CONTENTION = 100


@dataclass(slots=True)
class Outcome:
    """What a run came to. ttft: of short requests, itl: between their tokens, seconds. served: of each tenant,
    its tokens in requests started while others waited too, over its equal share of all such tokens."""

    ttft: array[float] = field(default_factory=lambda: array("d"))
    itl: array[float] = field(default_factory=lambda: array("d"))
    allocated: int = 0
    unwritten: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    most_blocks: int = 0
    evicted: int = 0
    finished: int = 0
    seconds: float = 0.0
    served: dict[str, float] = field(default_factory=dict)
    owed: dict[str, float] = field(default_factory=dict)
    contended: int = 0

    @property
    def waste(self) -> float:
        """Share of the allocated slots that hold nothing, averaged over steps."""
        return self.unwritten / max(1, self.allocated)

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / max(1, self.query_tokens)

    @property
    def fairness(self) -> float:
        """Jain's index (Jain, Chiu, Hawe 1984) of what tenants got over what was theirs.

        1 without contention, which means that hardly any request was started while those of several tenants
        had to go on waiting.
        """
        if self.contended < _SMALLEST_CONTENTION:
            return 1.0
        shares = [self.served.get(tenant, 0.0) / owed for tenant, owed in self.owed.items() if owed > 0]
        return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)) if any(shares) else 1.0


@dataclass(slots=True, eq=False)
class _Live:
    """A request that has not ended. answer: its tokens. noted: whether it was started. last: when its newest token
    came, below 0 before there is any."""

    request: TraceRequest
    answer: list[int]
    noted: bool = False
    last: float = -1.0


def lanes(blocks: BlockManager, config: EngineConfig, clock: Callable[[], float]) -> Scheduler:
    """The scheduler that serves."""
    return LaneScheduler(blocks, config, clock=clock)


class Run:
    """Steps a scheduler through a trace. The clock stands still but for the machine's steps and idle waits."""

    def __init__(self, make: MakeScheduler = lanes, num_blocks: int = NUM_BLOCKS) -> None:
        self.now = 0.0
        self._config = EngineConfig(
            max_sequences=MAX_SEQUENCES,
            max_step_tokens=MAX_STEP_TOKENS,
            target_step_ms=TARGET_STEP_MS,
            long_tokens=16_384,
            max_queue=10**9,
            swap_bytes=0,
        )
        self._blocks = BlockManager(
            [num_blocks],
            BLOCK_SIZE,
            max_sequences=MAX_SEQUENCES,
            max_length=LONGEST_SEQUENCE,
            clock=lambda: self.now,
        )
        self._scheduler = make(self._blocks, self._config, lambda: self.now)
        self._live: dict[Sequence, _Live] = {}
        self._later: list[tuple[float, int, TraceRequest]] = []
        self._number = 0
        self._waiting: dict[str, int] = {}
        self.outcome = Outcome()

    def drive(self, requests: Iterable[TraceRequest], give_up: Callable[[Outcome], bool] | None = None) -> Outcome:
        """Run until all requests and the turns that follow them have ended, or `give_up` says so.

        Raises EngineError when the scheduler makes no progress.
        """
        arrivals = iter(requests)
        upcoming = next(arrivals, None)
        steps = idle = 0
        while True:
            while upcoming is not None and upcoming.arrival <= self.now:
                self._submit(upcoming)
                upcoming = next(arrivals, None)
            while self._later and self._later[0][0] <= self.now:
                self._submit(heapq.heappop(self._later)[2])
            step = self._scheduler.schedule()
            if step.works:
                self._step(step)
                steps += 1
                idle = 0
                if steps % _SAMPLE_EVERY == 0:
                    self._sample()
                    if give_up is not None and give_up(self.outcome):
                        break
                continue
            following = [upcoming.arrival] if upcoming is not None else []
            following += [self._later[0][0]] if self._later else []
            if not self._live and not following:
                break
            idle += 1
            if idle > 1000:
                raise EngineError("The simulated scheduler makes no progress.")
            self.now = max(self.now, min(following)) if not self._live else self.now + _IDLE_SECONDS
        counters = self._blocks.counters
        self.outcome.query_tokens, self.outcome.hit_tokens = counters.query_tokens, counters.hit_tokens
        self.outcome.evicted = counters.evictions["capacity"]
        self.outcome.seconds = self.now
        return self.outcome

    def _submit(self, request: TraceRequest) -> None:
        params = SamplingParams(max_tokens=len(request.answer), ignore_eos=True)
        entry = EngineRequest(
            str(self._number), request.prompt.tolist(), params, request.arrival, tenant=request.tenant
        )
        chain = self._blocks.new_chain(CacheKey("simulated"))
        sequence = Sequence.create(entry, chain, self._number, 0, frozenset(), request.arrival)
        self._number += 1
        self._live[sequence] = _Live(request, request.answer.tolist())
        self._waiting[request.tenant] = self._waiting.get(request.tenant, 0) + 1
        self._scheduler.add(sequence)

    def _step(self, step: ScheduledStep) -> None:
        works = step.works
        seconds = step_seconds(works)
        started = [work.sequence for work in works if work.started]
        if started:
            self._note_starts([sequence for sequence in started if not self._live[sequence].noted])
        self.now += seconds
        if isinstance(self._scheduler, LaneScheduler):
            self._scheduler.observe(works, seconds)
        self._scheduler.commit(works)
        self._give_tokens(works)

    def _note_starts(self, sequences: list[Sequence]) -> None:
        """Note who was served while requests of several tenants had to go on waiting."""
        for sequence in sequences:
            self._waiting[sequence.tenant] -= 1
            self._live[sequence].noted = True
        waiting = [tenant for tenant, count in self._waiting.items() if count]
        if len(waiting) < 2:
            return
        outcome = self.outcome
        for sequence in sequences:
            if sequence.tenant in waiting:
                outcome.contended += 1
                outcome.served[sequence.tenant] = outcome.served.get(sequence.tenant, 0.0) + sequence.limit
                for tenant in waiting:
                    outcome.owed[tenant] = outcome.owed.get(tenant, 0.0) + sequence.limit / len(waiting)

    def _give_tokens(self, works: list[Work]) -> None:
        """The next token of its answer for every sequence that reached its newest one."""
        now, itl = self.now, self.outcome.itl
        for work in works:
            if not work.samples:
                continue
            sequence = work.sequence
            live = self._live[sequence]
            if not live.request.document:
                if live.last < 0:
                    self.outcome.ttft.append(now - live.request.arrival)
                else:
                    itl.append(now - live.last)
            live.last = now
            if sequence.append(live.answer[sequence.length - sequence.prompt_length]) is not None:
                self._end(sequence, live.request)

    def _end(self, sequence: Sequence, request: TraceRequest) -> None:
        self._scheduler.remove(sequence)
        del self._live[sequence]
        self.outcome.finished += 1
        following = next_turn(request, self.now)
        if following is not None:
            self._number += 1
            heapq.heappush(self._later, (following.arrival, self._number, following))

    def _sample(self) -> None:
        """Note how full the cache is and how much of it is written."""
        for blocks in self._blocks.live:
            self.outcome.allocated += blocks.count * BLOCK_SIZE
        for sequence in self._live:
            if sequence.blocks is not None:
                self.outcome.unwritten += sequence.blocks.count * BLOCK_SIZE - sequence.computed
        self.outcome.most_blocks = max(
            self.outcome.most_blocks, self._blocks.pools[0].count - self._blocks.pools[0].free
        )


def percentile(values: array[float], share: float) -> float:
    return float(np.percentile(values, share)) if values else 0.0
