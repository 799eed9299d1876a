"""Starter: whether a waiting sequence may start, and what it starts with."""

from __future__ import annotations

from rtcore.config import EngineConfig
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.match import Match
from rtcore.scheduler.active import ActiveSet
from rtcore.scheduler.deadlines import Deadlines
from rtcore.scheduler.lanes import Lane
from rtcore.scheduler.plan import StepPlan
from rtcore.sequence import Sequence, held

_PATIENCE = 3.0


class Starter:
    """Starts the sequences that wait in a lane, in their order, as long as places, blocks and the step last.

    All tokens of a sequence must fit into blocks that nobody uses and that no running sequence was promised,
    with one block to spare for each of those. What the other lane is sure of stays free for it.
    """

    def __init__(self, active: ActiveSet, blocks: BlockManager, deadlines: Deadlines, config: EngineConfig) -> None:
        self._active = active
        self._blocks = blocks
        self._deadlines = deadlines
        self._max_sequences = config.max_sequences
        self._chunk = config.max_step_tokens
        self._patience = _PATIENCE * config.ageing

    def _places(self, plan: StepPlan, lane: Lane, sequence: Sequence) -> int:
        """Sequences that may run before a lane starts another: the other lane's places stay free for it."""
        other = self._other(lane)
        head = other.waiting.first(plan.now)
        if head is None:
            return self._max_sequences
        kept = int(other.share * self._max_sequences) - len(other.running)
        if self._impatient(plan, head, sequence):
            kept = max(kept, 1)
        return self._max_sequences - max(0, kept)

    def _other(self, lane: Lane) -> Lane:
        short, long = self._active.lanes
        return short if lane is long else long

    def _impatient(self, plan: StepPlan, first: Sequence, second: Sequence) -> bool:
        """Whether `first` has waited for long, and longer than `second`, so that its lane comes first."""
        waited = plan.now - first.submitted
        return first.submitted < second.submitted and waited > self._patience

    def start(self, plan: StepPlan, lane: Lane, seconds: float) -> None:
        """Start waiting sequences of a lane, with `seconds` of the step for all of them."""
        while len(self._active.running) < self._max_sequences:
            sequence = lane.waiting.first(plan.now)
            if sequence is None:
                return
            exhausted = sequence.long in plan.served and seconds <= 0
            if exhausted or len(self._active.running) >= self._places(plan, lane, sequence):
                return
            taken = self._start(plan, lane, sequence, seconds)
            if taken is None:
                return
            seconds -= taken

    def _start(self, plan: StepPlan, lane: Lane, sequence: Sequence, seconds: float) -> float | None:
        """Start a waiting sequence; the seconds that it takes of this step, 0 when it was parked instead.

        None when it has to wait: then the lane starts nobody in this step.
        """
        if sequence.needed is not None and not self._fits(plan, lane, sequence, sequence.needed):
            return None
        reads = sequence.reads_cache
        known = sequence.tokens[: sequence.length - 1]
        match = self._blocks.match(sequence.chain, known) if reads else Match([])
        if reads and self._active.park(sequence, match.tokens):
            return 0.0
        saved = sequence.saved if sequence.saved is not None and sequence.saved.tokens > match.tokens else None
        # What is cached of the last block takes a block beside its copy, which the whole cache may not have: what a
        # sequence needs is never to be more than there is.
        match = Match([]) if saved is not None else self._blocks.without_tail(match, sequence.length)
        begin = match.tokens if saved is None else saved.tokens
        tokens = plan.chunk(sequence, begin, seconds)
        if not tokens:
            return None
        needed = self._blocks.needed(sequence.length, match, self._chunk)
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
        spent = plan.add(self._blocks, sequence, tokens, started=True)
        for group, promised in enumerate(self._promises(plan)):
            plan.promised[group] = promised + self._blocks.promised(
                group, sequence.length, blocks.count, self._chunk
            )
        return spent

    def _promises(self, plan: StepPlan) -> list[int]:
        """Blocks of each group that running sequences still need for the prompts they have started."""
        if not plan.promised:
            plan.promised = [
                sum(self._blocks.promised(group, s.length, held(s).count, self._chunk) for s in plan.prefilling)
                for group in range(len(self._blocks.pools))
            ]
        return plan.promised

    def _fits(self, plan: StepPlan, lane: Lane, sequence: Sequence, needed: list[int]) -> bool:
        """Whether a sequence of a lane can start now, if it needs so many blocks of each group."""
        spare = len(self._active.running)
        spare += self._kept_for_other(plan, lane, sequence)
        return all(
            self._blocks.available(group) - promised - spare >= blocks
            for group, (promised, blocks) in enumerate(zip(self._promises(plan), needed, strict=True))
        )

    def _kept_for_other(self, plan: StepPlan, lane: Lane, sequence: Sequence) -> int:
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
