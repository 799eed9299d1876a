"""StepPlan: a step while it is being filled."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtcore.kvcache.block_manager import BlockManager
from rtcore.scheduler.base import ScheduledStep, Work
from rtcore.scheduler.budget import StepBudget
from rtcore.sequence import Sequence, held

MAX_SCORED = 64
"""Tokens of prompts that one step may score: each takes a row of logits as wide as the vocabulary."""


@dataclass(slots=True)
class StepPlan:
    """The prefill chunks of a step, and what is left of its time and tokens.

    prefilling: running sequences with a prompt to compute, before the step starts any. chunked: sequences that have
    their chunk. served: whether the short and the long lane have had any. promised:
    blocks of each group that running sequences still need for the prompts they have started; empty until asked.
    scored: tokens of prompts whose log-probabilities the step tells.
    """

    step: ScheduledStep
    budget: StepBudget
    now: float
    prefilling: list[Sequence]
    chunks: list[Work] = field(default_factory=list)
    chunked: set[Sequence] = field(default_factory=set)
    served: set[bool] = field(default_factory=set)
    promised: list[int] = field(default_factory=list)
    scored: int = 0

    def chunk(self, sequence: Sequence, begin: int, seconds: float) -> int:
        """Tokens that a sequence may compute after `begin` others, with `seconds` for its lane."""
        owed = sequence.long not in self.served
        tokens = self.budget.chunk(begin, sequence.length - begin, seconds, owed)
        decoding = sequence.decoding
        if not decoding.scores_prompt or decoding.prompt_scored == sequence.prompt_length:
            return tokens
        # Tokens before the first to be scored need no logits; they are computed again after a preemption.
        return min(tokens, max(0, decoding.prompt_scored - 1 - begin) + MAX_SCORED - self.scored)

    def add(self, blocks: BlockManager, sequence: Sequence, tokens: int, started: bool) -> float:
        """Reserve a chunk of a running sequence; returns its seconds. started: in this step."""
        own = held(sequence)
        reserved = -1 if started else own.length
        work = Work(sequence, tokens, reserved, tokens == sequence.pending)
        self.scored += work.scored
        self.chunks.append(work)
        self.chunked.add(sequence)
        self.served.add(sequence.long)
        blocks.append(own, sequence.computed + tokens, sequence.computed)
        return self.budget.spend(sequence.computed, tokens)
