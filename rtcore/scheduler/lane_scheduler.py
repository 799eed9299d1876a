"""LaneScheduler: what runs in each step, from two lanes of requests over one paged cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rtcore.config import EngineConfig
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.prefix_cache import Match
from rtcore.request import EngineRequest
from rtcore.scheduler.active import ActiveSet
from rtcore.scheduler.base import ScheduledStep, Work
from rtcore.scheduler.budget import StepBudget
from rtcore.scheduler.cost_model import CostModel, attended
from rtcore.scheduler.deadlines import Deadlines
from rtcore.scheduler.lanes import Lane
from rtcore.scheduler.load import Load, LoadMonitor
from rtcore.scheduler.swapping import Swapping
from rtcore.sequence import Sequence, held
from rtcore.stats import LoadStats

_SMALLEST_SHARE = 0.1
_PATIENCE = 3.0


@dataclass(slots=True)
class _Plan:
    """A step while it is being filled: its prefill chunks, and what is left of time and tokens."""

    step: ScheduledStep
    budget: StepBudget
    now: float
    chunks: list[Work] = field(default_factory=list)
    chunked: set[Sequence] = field(default_factory=set)
    served: set[Lane] = field(default_factory=set)
    promised: list[int] = field(default_factory=list)


class LaneScheduler:
    """Each step decodes every running sequence, then fills the budget of time and tokens with prefill chunks.

    The short lane fills first and leaves the long lane its share of the time. A sequence starts when all of its
    tokens fit into blocks that nobody uses or was promised, with one block to spare for each running sequence,
    and takes them chunk by chunk. Within a lane WaitingQueue says who is next, and nobody overtakes the one
    that does not fit. When decoding runs out of blocks, the least important and latest sequence stops: its
    blocks stay cached as long as nobody needs them, or are copied to host memory where that is cheaper than
    computing them anew.
    """

    def __init__(
        self,
        blocks: BlockManager,
        config: EngineConfig,
        *,
        block_bytes: list[int] | None = None,
        model: CostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """block_bytes: of one block of each group, for swapping; without it nothing is swapped."""
        self._blocks = blocks
        self._config = config
        self._clock = clock
        self._target = config.target_step_ms / 1000
        self._delay = config.max_batch_delay_ms / 1000
        self._largest_chunk = config.max_prefill_chunk or config.max_step_tokens
        self.model = model or CostModel()
        self.monitor = LoadMonitor(config)
        swap_bytes = config.swap_bytes if block_bytes else 0
        self.swapping = Swapping(self.model, blocks, block_bytes or [0] * len(blocks.num_blocks), swap_bytes)
        self._active = ActiveSet(blocks, config, self.swapping, self.monitor)
        self._short, self._long = self._active.lanes
        self._deadlines = Deadlines()
        self._decode_load = (0, 0)

    @property
    def waiting(self) -> int:
        return self._active.waiting

    @property
    def running(self) -> int:
        return len(self._active.running)

    def sequences(self) -> Iterator[Sequence]:
        yield from self._active.sequences()

    def load(self) -> Load:
        """What there is to do, for estimates."""
        pending = sum(sequence.pending for sequence in self._active.running if sequence.pending > 1)
        decode = self.model.predict(*self._decode_load) if self._decode_load[0] else 0.0
        return Load(
            waiting=self.waiting,
            waiting_tokens=self._active.waiting_tokens,
            running=self.running,
            queued_seconds=self.model.per_token * (self._active.waiting_tokens + pending),
            share=max(_SMALLEST_SHARE, 1 - decode / self._target),
            step_seconds=max(decode, self.model.base),
        )

    def load_stats(self) -> LoadStats:
        load = self.load()
        return LoadStats(
            state=self.monitor.update(load).value,
            waiting_tokens=load.waiting_tokens,
            waiting_long=sum(sequence.long for sequence in self.sequences()) - len(self._long.running),
            running_long=len(self._long.running),
            estimated_wait=self.monitor.wait(load),
            step_base=self.model.base,
            step_per_token=self.model.per_token,
            step_per_attended=self.model.per_attended,
        )

    def admit(self, request: EngineRequest) -> None:
        """Raise Overloaded or DeadlineUnreachable if a request should not be taken now."""
        self.monitor.admit(request, self.load(), self.model.prefill(len(request.prompt_ids)))

    def add(self, sequence: Sequence) -> None:
        expected = self.monitor.expected_tokens(sequence.request)
        sequence.long = sequence.length + expected >= self._config.long_tokens
        self._active.enter(sequence)
        self._deadlines.add(sequence)

    def expired(self) -> list[Sequence]:
        """Sequences whose deadline has passed; the caller removes them."""
        return self._deadlines.expired(self._clock())

    def schedule(self) -> ScheduledStep:
        now = self._clock()
        step = ScheduledStep()
        if self._waits_for_more(now):
            return step
        decodes, prefilling = self._decode(step)
        self._decode_load = (len(decodes), step.attended)
        plan = _Plan(step, self._new_budget(len(decodes), step.attended), now)
        self._prefill(plan, prefilling)
        step.works = decodes
        step.works += [work for work in plan.chunks if work.tokens == 1]
        step.works += [work for work in plan.chunks if work.tokens > 1]
        if not step.works and len(self._active.running) > 1:
            self._active.preempt(self._active.least_important(), step)
        step.copies = self._blocks.take_copies()
        return step

    def _waits_for_more(self, now: float) -> bool:
        """Whether to hold an idle engine's first step back for more requests."""
        if not self._delay or self._active.running or self.waiting >= self._config.max_sequences:
            return False
        if self._active.waiting_tokens >= self._config.max_step_tokens:
            return False
        since = [oldest for lane in (self._short, self._long) if (oldest := lane.waiting.oldest()) is not None]
        return bool(since) and now - min(since) < self._delay

    def _new_budget(self, rows: int, attended: int) -> StepBudget:
        return StepBudget(
            self.model,
            tokens=self._config.max_step_tokens,
            largest_chunk=self._largest_chunk,
            target=self._target,
            decode_rows=rows,
            decode_attended=attended,
        )

    def _decode(self, step: ScheduledStep) -> tuple[list[Work], list[Sequence]]:
        """A slot for the newest token of every running sequence, others preempted if need be.

        Returns the works, and the running sequences that still have a prompt to compute.
        """
        works: list[Work] = []
        prefilling: list[Sequence] = []
        growing: list[Sequence] = []
        attended = 0
        for sequence in self._active.running:
            length = sequence.length
            if length - sequence.computed != 1:
                prefilling.append(sequence)
                continue
            blocks = held(sequence)
            works.append(Work(sequence, 1, blocks.length, True))
            attended += length
            if length <= blocks.writable:
                blocks.length = length
            else:
                growing.append(sequence)
        step.attended = attended
        if growing:
            while growing and min(self._blocks.free_blocks) < len(growing):
                victim = self._active.least_important()
                self._active.preempt(victim, step)
                works = [work for work in works if work.sequence is not victim]
                growing = [sequence for sequence in growing if sequence is not victim]
                prefilling = [sequence for sequence in prefilling if sequence is not victim]
            for sequence in growing:
                self._blocks.append(held(sequence), sequence.length, sequence.computed)
            if step.preempted:
                step.attended = sum(work.sequence.length for work in works)
        return works, prefilling

    def _prefill(self, plan: _Plan, prefilling: list[Sequence]) -> None:
        """Share what the decode rows left of the step among the lanes.

        As long as sequences of the short lane decode, prompts of the long lane get their share of the target
        and no more: they would fill every step to the target, for as long as a long prompt takes.
        """
        short = [sequence for sequence in prefilling if not sequence.long]
        long = [sequence for sequence in prefilling if sequence.long]
        budget = plan.budget
        if not (long or len(self._long.waiting)):
            self._fill(plan, self._short, short, budget.seconds)
            return
        most = self._target * self._long.share if len(self._short.running) > len(short) else math.inf
        self._fill(plan, self._short, short, budget.seconds * self._short.share)
        self._fill(plan, self._long, long, min(most, budget.seconds))
        self._fill(plan, self._short, short, budget.seconds)

    def _fill(self, plan: _Plan, lane: Lane, prefilling: list[Sequence], seconds: float) -> None:
        """Chunks for a lane's sequences, the running ones first, and starts of waiting ones."""
        for running in prefilling:
            if running not in plan.chunked:
                owed = lane not in plan.served
                tokens = plan.budget.chunk(running.computed, running.pending, seconds, owed)
                tokens = self._fitting(running, tokens)
                if tokens:
                    seconds -= self._add_chunk(plan, running, tokens, started=False)
        if plan.step.preempted:
            return
        while (sequence := lane.waiting.first(plan.now)) is not None:
            if len(self._active.running) >= self._places(plan, lane, sequence):
                return
            taken = self._start(plan, lane, sequence, seconds)
            if taken is None:
                return
            seconds -= taken

    def _fitting(self, sequence: Sequence, tokens: int) -> int:
        """As many of `tokens` as the available blocks hold."""
        blocks = held(sequence)
        if not tokens or self._blocks.can_append(blocks, sequence.computed + tokens):
            return tokens
        room = (blocks.count + min(self._blocks.free_blocks)) * self._blocks.block_size - sequence.computed
        room = min(tokens, room)
        return room if room > 0 and self._blocks.can_append(blocks, sequence.computed + room) else 0

    def _add_chunk(self, plan: _Plan, sequence: Sequence, tokens: int, started: bool) -> float:
        """Reserve a chunk; returns its seconds."""
        blocks = held(sequence)
        plan.chunks.append(Work(sequence, tokens, -1 if started else blocks.length, tokens == sequence.pending))
        plan.chunked.add(sequence)
        plan.served.add(self._long if sequence.long else self._short)
        self._blocks.append(blocks, sequence.computed + tokens, sequence.computed)
        return plan.budget.spend(sequence.computed, tokens)

    def _places(self, plan: _Plan, lane: Lane, sequence: Sequence) -> int:
        """Sequences that may run before a lane starts another: the other lane's places stay free for it."""
        other = self._other(lane)
        head = other.waiting.first(plan.now)
        if head is None:
            return self._config.max_sequences
        kept = int(other.share * self._config.max_sequences) - len(other.running)
        if self._impatient(plan, head, sequence):
            kept = max(kept, 1)
        return self._config.max_sequences - max(0, kept)

    def _other(self, lane: Lane) -> Lane:
        return self._short if lane is self._long else self._long

    def _impatient(self, plan: _Plan, first: Sequence, second: Sequence) -> bool:
        """Whether `first` has waited for long, and longer than `second`, so that its lane comes first."""
        waited = plan.now - first.submitted
        return first.submitted < second.submitted and waited > _PATIENCE * self._config.ageing

    def _start(self, plan: _Plan, lane: Lane, sequence: Sequence, seconds: float) -> float | None:
        """Start a waiting sequence; the seconds that it takes of this step, 0 when it was parked instead.

        None when it has to wait: then the lane starts nobody in this step.
        """
        if sequence.needed is not None and not self._fits(plan, lane, sequence, sequence.needed):
            return None
        reads = sequence.request.read_cache
        known = sequence.tokens[: sequence.length - 1]
        match = self._blocks.match(sequence.chain, known) if reads else Match([])
        if reads and self._active.park(sequence, match.tokens):
            return 0.0
        saved = sequence.saved if sequence.saved is not None and sequence.saved.tokens > match.tokens else None
        if saved is not None:
            match = Match([])
        begin = match.tokens if saved is None else saved.tokens
        tokens = plan.budget.chunk(begin, sequence.length - begin, seconds, owed=lane not in plan.served)
        if not tokens:
            return None
        needed = self._blocks.needed(sequence.length, match, self._config.max_step_tokens)
        if not self._fits(plan, lane, sequence, needed):
            sequence.needed = needed
            return None
        if saved is not None:
            blocks = self._blocks.restore(sequence.chain, saved)
            plan.step.loads.append(sequence)
        else:
            blocks = self._blocks.open(sequence.chain, match)
            self._active.unsave(sequence)
        if sequence.started is None:
            self._deadlines.started(sequence)
            if reads:
                self._blocks.counters.query_tokens += sequence.length
                self._blocks.counters.hit_tokens += match.tokens
        self._active.start(sequence, blocks, begin, plan.now)
        spent = self._add_chunk(plan, sequence, tokens, started=True)
        for group, promised in enumerate(self._promises(plan)):
            left = self._blocks.promised(group, sequence.length, blocks.count, self._config.max_step_tokens)
            plan.promised[group] = promised + left
        return spent

    def _promises(self, plan: _Plan) -> list[int]:
        """Blocks of each group that running sequences still need for the prompts they have started."""
        if not plan.promised:
            chunk = self._config.max_step_tokens
            prefilling = [sequence for sequence in self._active.running if sequence.pending > 1]
            plan.promised = [
                sum(self._blocks.promised(group, s.length, held(s).count, chunk) for s in prefilling)
                for group in range(len(self._blocks.pools))
            ]
        return plan.promised

    def _fits(self, plan: _Plan, lane: Lane, sequence: Sequence, needed: list[int]) -> bool:
        """Whether a sequence of a lane can start now, if it needs so many blocks of each group."""
        spare = len(self._active.running)
        spare += self._kept_for_other(plan, lane, sequence)
        return all(
            self._blocks.available(group) - promised - spare >= blocks
            for group, (promised, blocks) in enumerate(zip(self._promises(plan), needed, strict=True))
        )

    def _kept_for_other(self, plan: _Plan, lane: Lane, sequence: Sequence) -> int:
        """Blocks that a sequence must leave to the other lane, whose next sequence does not fit yet.

        That lane is sure of its share of the cache. Of two that do not fit, the older one gets all that it
        needs once it has waited for long.
        """
        other = self._other(lane)
        head = other.waiting.first(plan.now)
        if head is None or head.needed is None or self._impatient(plan, sequence, head):
            return 0
        if self._impatient(plan, head, sequence):
            return max(head.needed)
        if not self._active.running:
            return 0
        return max(0, min(max(head.needed), int(other.share * min(self._blocks.num_blocks)) - other.blocks))

    def observe(self, works: list[Work], seconds: float) -> None:
        """Learn from works that ran together, before they are committed."""
        tokens, context = 0, 0.0
        for work in works:
            tokens += work.tokens
            begin = work.sequence.computed
            context += attended(begin, work.tokens) if work.tokens > 1 else begin + 1
        self.model.observe(tokens, context, seconds)

    def commit(self, works: list[Work]) -> None:
        self._active.commit(works)

    def rollback(self, works: list[Work]) -> None:
        self._active.rollback(works)

    def restart(self, sequence: Sequence) -> None:
        self._active.restart(sequence)

    def distrust(self, sequence: Sequence) -> None:
        self._active.distrust(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._active.remove(sequence, self._clock())
        self._deadlines.discard(sequence)

    def check_invariants(self) -> None:
        self._active.check_invariants()
