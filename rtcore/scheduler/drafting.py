"""Drafting: drafts for sequences that decode, where the step has room for them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rtcore.decoding.speculation.adaptive import DraftLength, StepCost
from rtcore.decoding.speculation.base import Ask, Proposer
from rtcore.executor.base import Int64
from rtcore.kvcache.block_manager import BlockManager
from rtcore.scheduler.base import ScheduledStep, Work
from rtcore.scheduler.cost_model import CostModel
from rtcore.sequence import Sequence, held

logger = logging.getLogger(__name__)

_SMOOTHING = 0.1
MOST_DRAFT_ROWS = 64
"""Drafts of all sequences in one step: each takes a row of logits as wide as the vocabulary."""


class Drafting:
    """Asks a proposer and reserves blocks for what it says.

    Drafts never cost another sequence anything: they take what decoding and prompts left of the step's tokens, and
    of the blocks that are available all but one for each running sequence. Attributes: drafted, accepted.
    """

    def __init__(
        self,
        proposer: Proposer,
        most: int,
        *,
        blocks: BlockManager,
        model: CostModel,
        vocab_size: int,
        clock: Callable[[], float],
    ) -> None:
        """most: drafts of one sequence in a step. clock: seconds, for what proposing takes."""
        self._proposer: Proposer | None = proposer
        self._most = most
        self._blocks = blocks
        self._model = model
        self._vocab_size = vocab_size
        self._clock = clock
        self._seconds_each = 0.0
        self.drafted = self.accepted = 0

    def add(self, works: list[Work], step: ScheduledStep, tokens: int, running: int) -> None:
        """Give works that decode drafts. tokens: that the step has room for. running: sequences that run."""
        if self._proposer is None or not works or tokens < 1:
            return
        cost = StepCost(
            base=self._model.base + self._model.per_attended * step.attended,
            per_token=self._model.per_token,
            rows=len(works),
            proposing=self._seconds_each,
        )
        tokens = min(tokens, MOST_DRAFT_ROWS)
        asks: list[Ask] = []
        asked: list[Work] = []
        for work in works:
            sequence = work.sequence
            count = min(self._wanted(sequence, cost), sequence.limit - sequence.length - 1, tokens)
            if count > 0:
                tokens -= count
                asks.append(Ask(sequence.request.id, _view(sequence), count))
                asked.append(work)
        if not asks:
            return
        for work, ask, drafts in zip(asked, asks, self._propose(self._proposer, asks), strict=True):
            self._reserve(work, drafts[: ask.count], running)

    def _wanted(self, sequence: Sequence, cost: StepCost) -> int:
        decoding = sequence.decoding
        # The user's own code keeps a state that follows each token as it is certain, one after the other.
        if not sequence.request.params.speculation or decoding.processors or decoding.stop_rules:
            return 0
        if decoding.draft_length is None:
            decoding.draft_length = DraftLength(self._most)
        return decoding.draft_length.choose(cost)

    def _propose(self, proposer: Proposer, asks: list[Ask]) -> list[tuple[int, ...]]:
        began = self._clock()
        try:
            drafts = [tuple(int(token) for token in guess) for guess in proposer.propose(asks)]
            if len(drafts) != len(asks):
                raise ValueError(f"{len(asks)} sequences were asked about and {len(drafts)} answers came")
        except Exception:
            # It may be code of the user's own, and nobody's answer depends on it.
            logger.exception("The proposer of drafts failed; the engine goes on without one")
            self.close()
            return [()] * len(asks)
        count = sum(len(guess) for guess in drafts) or len(asks)
        self._seconds_each += _SMOOTHING * ((self._clock() - began) / count - self._seconds_each)
        return drafts

    def _reserve(self, work: Work, drafts: tuple[int, ...], running: int) -> None:
        """Add as many of the drafts to a work as are tokens and as there are blocks for."""
        valid = next((n for n, token in enumerate(drafts) if not 0 <= token < self._vocab_size), len(drafts))
        sequence = work.sequence
        own = held(sequence)
        spare = min(self._blocks.free_blocks) - running
        room = max(own.writable, (own.count + max(0, spare)) * self._blocks.block_size) - sequence.length
        count = min(valid, room)
        if count < 1 or not self._blocks.can_append(own, sequence.length + count):
            return
        self._blocks.append(own, sequence.length + count, sequence.computed)
        work.drafts = drafts[:count]
        work.tokens += count

    def commit(self, works: list[Work]) -> None:
        """Learn from works that ran, and give back the blocks of drafts that did not hold."""
        for work in works:
            sequence = work.sequence
            if work.drafts:
                self.drafted += len(work.drafts)
                self.accepted += work.accepted
                if sequence.decoding.draft_length is not None:
                    sequence.decoding.draft_length.observe(len(work.drafts), work.accepted)
            # Also where a work failed with its drafts and ran without.
            if held(sequence).length > sequence.computed:
                self._blocks.truncate(held(sequence), sequence.computed)

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        if self._proposer is not None and sequence.decoding.draft_length is not None:
            self._proposer.forget(sequence.request.id)

    def close(self) -> None:
        """Give back the proposer; there are no drafts any more. Safe to call twice."""
        proposer, self._proposer = self._proposer, None
        if proposer is not None:
            proposer.close()


def _view(sequence: Sequence) -> Int64:
    """Its tokens, for reading."""
    tokens = sequence.tokens[: sequence.length]
    tokens.flags.writeable = False
    return tokens
