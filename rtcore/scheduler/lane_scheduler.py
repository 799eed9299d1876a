"""LaneScheduler: what runs in each step, from two lanes of requests over one paged cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from rtcore.config import EngineConfig
from rtcore.decoding.speculation.base import Proposer
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.sequence_blocks import SequenceBlocks
from rtcore.request import EngineRequest
from rtcore.scheduler.active import ActiveSet
from rtcore.scheduler.base import ScheduledStep, Work, singles
from rtcore.scheduler.budget import StepBudget
from rtcore.scheduler.cost_model import CostModel, attended
from rtcore.scheduler.deadlines import Deadlines
from rtcore.scheduler.drafting import Drafting
from rtcore.scheduler.lanes import Lane
from rtcore.scheduler.load import Load, LoadMonitor
from rtcore.scheduler.plan import StepPlan
from rtcore.scheduler.starting import Starter
from rtcore.scheduler.swapping import Swapping
from rtcore.sequence import Sequence, held
from rtcore.stats import LoadStats

_SMALLEST_SHARE = 0.1


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
        proposer: Proposer | None = None,
        vocab_size: int = 0,
    ) -> None:
        """block_bytes: of one block of each group, for swapping; without it nothing is swapped. proposer: of
        drafts, which are ids below vocab_size; the scheduler closes it.
        """
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
        self._starter = Starter(self._active, blocks, self._deadlines, config)
        self._decode_load = (0, 0)
        self._drafting: Drafting | None = None
        if proposer is not None:
            self._drafting = Drafting(
                proposer, config.max_drafts, blocks=blocks, model=self.model, vocab_size=vocab_size, clock=clock
            )

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
        self._deadlines.discard(sequence)
        self._deadlines.add(sequence)

    def watch(self, sequence: Sequence) -> None:
        """Have a sequence that is not queued yet count as expired when its deadline passes."""
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
        plan = StepPlan(step, self._new_budget(len(decodes), step.attended), now, prefilling)
        self._prefill(plan)
        if self._drafting is not None and not step.preempted:
            self._drafting.add(decodes, step, plan.budget.tokens, len(self._active.running))
        # Without drafts every decode has one token, so only the few chunks need to be looked at.
        single, mixed = (decodes, plan.chunks) if self._drafting is None else ([], decodes + plan.chunks)
        step.works = single + [work for work in mixed if work.tokens == 1]
        step.works += [work for work in mixed if work.tokens > 1]
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
        for sequence, work in self._active.running.items():
            length = sequence.length
            blocks = sequence.blocks
            if blocks is None or length - sequence.computed != 1:
                # One whose last token the running step chooses has nothing left to compute.
                if length > sequence.computed:
                    prefilling.append(sequence)
                continue
            works.append(work)
            attended += length
            if length <= blocks.writable:
                blocks.length = length
            else:
                growing.append(sequence)
        if self._drafting is not None:
            # Drafts change a work, so it must be of this step alone.
            works = [Work(work.sequence, 1, work.sequence.computed, True) for work in works]
        step.attended = attended
        if growing:
            while not self._blocks.can_add_blocks(len(growing)):
                victim = self._active.least_important()
                self._active.preempt(victim, step)
                works = [work for work in works if work.sequence is not victim]
                growing = [sequence for sequence in growing if sequence is not victim]
                prefilling = [sequence for sequence in prefilling if sequence is not victim]
            whole: list[SequenceBlocks] = []
            for sequence in growing:
                blocks = held(sequence)
                if blocks.writable < blocks.length:
                    self._blocks.append(blocks, sequence.length, sequence.computed)
                else:
                    whole.append(blocks)
            self._blocks.add_blocks(whole)
            if step.preempted:
                step.attended = sum(work.sequence.length for work in works)
        return works, prefilling

    def _prefill(self, plan: StepPlan) -> None:
        """Share what the decode rows left of the step among the lanes.

        As long as sequences of the short lane decode, prompts of the long lane get their share of the target
        and no more: they would fill every step to the target, for as long as a long prompt takes.
        """
        short = [sequence for sequence in plan.prefilling if not sequence.long]
        long = [sequence for sequence in plan.prefilling if sequence.long]
        budget = plan.budget
        if not (long or len(self._long.waiting)):
            self._fill(plan, self._short, short, budget.seconds)
            return
        most = self._target * self._long.share if len(self._short.running) > len(short) else math.inf
        self._fill(plan, self._short, short, budget.seconds * self._short.share)
        self._fill(plan, self._long, long, min(most, budget.seconds))
        self._fill(plan, self._short, short, budget.seconds)

    def _fill(self, plan: StepPlan, lane: Lane, prefilling: list[Sequence], seconds: float) -> None:
        """Chunks for a lane's sequences, the running ones first, and starts of waiting ones."""
        for running in prefilling:
            if running not in plan.chunked:
                tokens = self._fitting(running, plan.chunk(running, running.computed, seconds))
                if tokens:
                    seconds -= plan.add(self._blocks, running, tokens, started=False)
        if not plan.step.preempted:
            self._starter.start(plan, lane, seconds)

    def _fitting(self, sequence: Sequence, tokens: int) -> int:
        """As many of `tokens` as the available blocks hold."""
        blocks = held(sequence)
        if not tokens or self._blocks.can_append(blocks, sequence.computed + tokens):
            return tokens
        room = (blocks.count + min(self._blocks.free_blocks)) * self._blocks.block_size - sequence.computed
        room = min(tokens, room)
        return room if room > 0 and self._blocks.can_append(blocks, sequence.computed + room) else 0

    def can_run_ahead(self, growing: int) -> bool:
        """Whether the next step can be scheduled before the tokens of the running one are known.

        growing: sequences of that step that will need another block. Nobody may have to be preempted for them, as
        what was computed of a sequence is not certain yet, and drafts follow from tokens.
        """
        return self._drafting is None and min(self._blocks.free_blocks) >= growing

    def observe(self, works: list[Work], seconds: float) -> None:
        """Learn from works that ran together, those of one token first, before they are committed."""
        tokens = singles(works)
        context = float(sum([work.sequence.computed for work in works[:tokens]]) + tokens)
        for work in works[tokens:]:
            tokens += work.tokens
            context += attended(work.sequence.computed, work.tokens)
        self.model.observe(tokens, context, seconds)

    def commit(self, works: list[Work]) -> None:
        self._active.commit(works)
        if self._drafting is not None:
            self._drafting.commit(works)

    def rollback(self, works: list[Work]) -> None:
        self._active.rollback(works)

    def restart(self, sequence: Sequence) -> None:
        self._active.restart(sequence)

    def distrust(self, sequence: Sequence) -> None:
        self._active.distrust(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._active.remove(sequence, self._clock())
        self._deadlines.discard(sequence)
        if self._drafting is not None:
            self._drafting.forget(sequence)

    @property
    def drafts(self) -> tuple[int, int]:
        """How many drafts were verified, and how many of them held."""
        return (0, 0) if self._drafting is None else (self._drafting.drafted, self._drafting.accepted)

    def close(self) -> None:
        """Give back what makes drafts. Safe to call twice."""
        if self._drafting is not None:
            self._drafting.close()

    def check_invariants(self) -> None:
        self._active.check_invariants()
