"""The interface of a scheduler and the work that it picks for one step."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from rtcore.kvcache.sequence_blocks import BlockCopy
from rtcore.sequence import Sequence

_tokens = attrgetter("tokens")


@dataclass(slots=True)
class Work:
    """The next `tokens` uncomputed tokens of a sequence, and how far its blocks reached before this step.

    reserved: tokens that the sequence's blocks held before; -1 if it held none and was waiting, None for one less
    than they hold now. samples: whether the step reaches the sequence's newest token, so that the next one can be
    drawn. drafts: guesses at the tokens that follow the newest one; they are the last of `tokens`, and the step
    draws a token after each of them too. accepted: how many drafts the draws confirmed, known before the work is
    committed; the others count as not computed.
    """

    sequence: Sequence
    tokens: int
    reserved: int | None
    samples: bool
    drafts: tuple[int, ...] = ()
    accepted: int = 0

    @property
    def started(self) -> bool:
        """Whether its sequence was waiting before this step."""
        return self.reserved == -1

    @property
    def scored(self) -> int:
        """Positions of the prompt whose logits say how likely the prompt's next token is, where that is asked."""
        sequence = self.sequence
        if not sequence.decoding.scores_prompt:
            return 0
        begin = max(sequence.computed, sequence.decoding.prompt_scored - 1)
        return max(0, min(sequence.computed + self.tokens, sequence.prompt_length - 1) - begin)

    @property
    def logits(self) -> int:
        """How many of its tokens, the last ones, go through the head."""
        return self.scored + (1 + len(self.drafts) if self.samples else 0)


def singles(works: list[Work]) -> int:
    """How many works of a step have a single token: they come first."""
    return bisect_left(works, 2, key=_tokens)


@dataclass(slots=True)
class ScheduledStep:
    """One step's work: first the rows of a single token, then the longer prefill chunks.

    Blocks for all of it are reserved. Before it runs, blocks have to be saved to host memory (`saves`), then
    copied (`copies`), then loaded back (`loads`). attended: tokens that the decoded tokens attend to, summed
    over them. The step must be ended by exactly one of LaneScheduler.commit and LaneScheduler.rollback, or
    piece by piece by commit of some and rollback of the others.
    """

    works: list[Work] = field(default_factory=list)
    preempted: int = 0
    attended: int = 0
    saves: list[Sequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    loads: list[Sequence] = field(default_factory=list)


class Scheduler(Protocol):
    """Owns the queue and the running set, and reserves cache blocks for what it picks."""

    @property
    def waiting(self) -> int:
        """Sequences that hold no blocks."""

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""

    def add(self, sequence: Sequence) -> None:
        """Queue a waiting sequence."""

    def schedule(self) -> ScheduledStep:
        """Pick and reserve the next step; empty when there is no work or no room for any."""

    def commit(self, works: list[Work]) -> None:
        """The works ran: their tokens are in the cache."""

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of whatever state it is in and give back its blocks. Safe to call twice."""
