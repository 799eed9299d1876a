"""ActiveSet: every sequence that is not finished, and the ways from one state to another."""

from __future__ import annotations

from collections.abc import Iterator

from ops.errors import EngineError
from rtcore.config import EngineConfig
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.invariants import check_blocks
from rtcore.kvcache.sequence_blocks import SequenceBlocks
from rtcore.scheduler.base import ScheduledStep, Work, singles
from rtcore.scheduler.fairness import TenantAccounts
from rtcore.scheduler.lanes import Lane
from rtcore.scheduler.load import LoadMonitor
from rtcore.scheduler.parking import Parking
from rtcore.scheduler.swapping import Swapping
from rtcore.sequence import Sequence, Status, held


class ActiveSet:
    """Waiting sequences (in a lane's queue or parked on a running one) and running ones, with their blocks.

    Waiting sequences hold no blocks and nothing of them is computed. Whatever ends the running of a sequence
    leaves what it computed in the prefix cache, unless it cannot be trusted.
    """

    def __init__(
        self, blocks: BlockManager, config: EngineConfig, swapping: Swapping, monitor: LoadMonitor
    ) -> None:
        self._blocks = blocks
        self._swapping = swapping
        self._monitor = monitor
        self._max_sequences = config.max_sequences
        self._accounts = TenantAccounts(config.tenant_weights)
        self._parking = Parking()
        self._shares_prompts = config.prefix_cache
        self.lanes = (
            Lane(1 - config.long_share, self._accounts, config.ageing),
            Lane(config.long_share, self._accounts, config.ageing),
        )
        self.running: dict[Sequence, Work] = {}
        """In order of their starts, each with the work of a step in which it decodes."""
        self.waiting_tokens = 0

    @property
    def waiting(self) -> int:
        return len(self.lanes[0].waiting) + len(self.lanes[1].waiting) + len(self._parking)

    def sequences(self) -> Iterator[Sequence]:
        """All sequences, running ones first."""
        yield from self.running
        for lane in self.lanes:
            yield from lane.waiting
        yield from self._parking

    def lane(self, sequence: Sequence) -> Lane:
        return self.lanes[sequence.long]

    def enter(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting_tokens += sequence.length
        self.lane(sequence).waiting.add(sequence)

    def park(self, sequence: Sequence, cached: int) -> bool:
        """Have a waiting sequence wait for the running one, if any, that computes what it needs next."""
        if not (self._shares_prompts and self._parking.park(sequence, cached)):
            return False
        self.lane(sequence).waiting.discard(sequence)
        return True

    def start(self, sequence: Sequence, blocks: SequenceBlocks, computed: int, now: float) -> None:
        """Waiting to running, with blocks that hold `computed` tokens."""
        lane = self.lane(sequence)
        lane.waiting.discard(sequence)
        lane.running[sequence] = None
        self.running[sequence] = Work(sequence, 1, None, True)
        self.waiting_tokens -= sequence.length
        self._accounts.serve(sequence.tenant)
        sequence.status = Status.RUNNING
        sequence.blocks = blocks
        sequence.computed = computed
        sequence.charged = max(sequence.charged, computed)
        sequence.needed = None
        if sequence.started is None:
            sequence.started = now
        if self._shares_prompts:
            self._put_back(self._parking.advance(sequence))

    def commit(self, works: list[Work]) -> None:
        """The works ran: their tokens are in the cache."""
        size, ones = self._blocks.block_size, singles(works)
        for work in works[:ones]:
            sequence = work.sequence
            sequence.computed = computed = sequence.computed + 1
            if sequence.frontier is not None or sequence.saved is not None:
                self._settle(sequence, prefilled=sequence.frontier is not None)
            elif not computed % size:
                # It decoded, and a block became full.
                self._blocks.note(held(sequence), sequence.tokens[:computed])
                self._charge(sequence)
        for work in works[ones:]:
            work.sequence.computed += work.tokens + work.accepted - len(work.drafts)
            self._settle(work.sequence, prefilled=not work.drafts or work.sequence.frontier is not None)

    def _settle(self, sequence: Sequence, prefilled: bool) -> None:
        """What a sequence computed is in its blocks. prefilled: and is of its prompt."""
        complete = prefilled and sequence.computed == sequence.length
        self._blocks.note(held(sequence), sequence.tokens[: sequence.computed], tail=complete)
        self.unsave(sequence)
        self._charge(sequence)
        if prefilled and self._shares_prompts:
            self._put_back(self._parking.advance(sequence))

    def _charge(self, sequence: Sequence) -> None:
        if sequence.computed > sequence.charged:
            self._accounts.charge(sequence.tenant, sequence.computed - sequence.charged)
            sequence.charged = sequence.computed

    def rollback(self, works: list[Work]) -> None:
        """The works did not run: give back what was reserved and restore queue and running set."""
        for work in works:
            sequence = work.sequence
            if sequence.blocks is None:
                continue
            if work.started:
                self._stop(sequence)
                self._put_back([sequence])
            else:
                before = sequence.blocks.length - 1 if work.reserved is None else work.reserved
                self._blocks.truncate(sequence.blocks, before)

    def restart(self, sequence: Sequence) -> None:
        """Running to waiting, because its blocks do not hold what they should; nothing of it is kept."""
        if sequence.blocks is not None:
            self.distrust(sequence)
            self._stop(sequence)
            self._put_back([sequence])
        self.unsave(sequence)

    def preempt(self, victim: Sequence, step: ScheduledStep) -> None:
        """Running to waiting, for the blocks of the sequence."""
        self._leave_cached(victim)
        self.unsave(victim)
        victim.saved = self._swapping.plan(held(victim), victim.computed)
        if victim.saved is not None:
            step.saves.append(victim)
        step.preempted += 1
        self._stop(victim)
        self._put_back([victim])

    def least_important(self) -> Sequence:
        """The running sequence to preempt first: of the lowest priority the latest arrival."""
        return max(self.running, key=lambda sequence: (sequence.priority, sequence.order))

    def distrust(self, sequence: Sequence) -> None:
        """Cache nothing more of a running sequence: what it computed may be wrong."""
        self._blocks.distrust(held(sequence))

    def unsave(self, sequence: Sequence) -> None:
        """Forget the copy of a sequence's blocks in host memory."""
        if sequence.saved is not None:
            self._swapping.forget(sequence.saved)
            sequence.saved = None

    def remove(self, sequence: Sequence, now: float) -> None:
        """Any state to finished. Safe to call twice."""
        if sequence.status is Status.RUNNING:
            self._leave_cached(sequence)
            self._charge(sequence)
            if sequence.started is not None and sequence.length > sequence.prompt_length:
                self._monitor.finished(sequence.length - sequence.prompt_length, now - sequence.started)
            self._stop(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting_tokens -= sequence.length
            self._parking.discard(sequence)
            self.lane(sequence).waiting.discard(sequence)
        self.unsave(sequence)
        sequence.status = Status.FINISHED

    def _leave_cached(self, sequence: Sequence) -> None:
        if sequence.computed:
            self._blocks.commit(held(sequence), sequence.tokens[: sequence.computed], tail=True)

    def _stop(self, sequence: Sequence) -> None:
        """Take a sequence out of the running set; its blocks and what was computed are gone."""
        del self.running[sequence]
        del self.lane(sequence).running[sequence]
        self._blocks.close(held(sequence))
        sequence.blocks = None
        sequence.computed = 0
        self._put_back(self._parking.stop(sequence))

    def _put_back(self, sequences: list[Sequence]) -> None:
        """Queue sequences that had their turn, before those that did not."""
        for sequence in sequences:
            if sequence.status is Status.RUNNING:
                sequence.status = Status.WAITING
                self.waiting_tokens += sequence.length
            self.lane(sequence).waiting.put_back(sequence)

    def check_invariants(self) -> None:
        """Raise EngineError unless states, queues and blocks are consistent between steps."""
        if len(self.running) > self._max_sequences:
            raise EngineError("More sequences run than may.")
        for sequence in self.running:
            blocks = held(sequence)
            sound = sequence.status is Status.RUNNING and 0 <= sequence.computed < sequence.length
            if not sound or sequence.computed > blocks.length:
                raise EngineError(f"Running sequence {sequence.request.id} has an impossible state.")
        if set(self.running) != {*self.lanes[0].running, *self.lanes[1].running}:
            raise EngineError("The lanes do not hold the running sequences.")
        waiting = [sequence for sequence in self.sequences() if sequence not in self.running]
        if len(set(waiting)) != len(waiting) or len(waiting) != self.waiting:
            raise EngineError("A waiting sequence is in two queues.")
        for sequence in waiting:
            if sequence.status is not Status.WAITING or sequence.blocks is not None or sequence.computed:
                raise EngineError(f"Waiting sequence {sequence.request.id} has an impossible state.")
        if self.waiting_tokens != sum(sequence.length for sequence in waiting):
            raise EngineError("The tokens of waiting sequences do not add up.")
        if self._swapping.used != sum(s.saved.size for s in self.sequences() if s.saved is not None):
            raise EngineError("The host memory of preempted sequences does not add up.")
        check_blocks(self._blocks, [held(sequence) for sequence in self.running])
