"""The interface of a scheduler and the work that it picks for one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rtcore.kvcache.block_manager import BlockCopy
from rtcore.sequence import Sequence


@dataclass(slots=True)
class Work:
    """The next `tokens` uncomputed tokens of a sequence, and how far its blocks reached before this step.

    reserved: tokens that the sequence's blocks held before; -1 if it held none and was waiting. samples: whether
    the step reaches the sequence's newest token, so that the next one can be drawn.
    """

    sequence: Sequence
    tokens: int
    reserved: int
    samples: bool


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
