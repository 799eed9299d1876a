"""Lane: one of the two kinds of requests that are scheduled apart."""

from __future__ import annotations

from rtcore.scheduler.fairness import TenantAccounts
from rtcore.scheduler.waiting import WaitingQueue
from rtcore.sequence import Sequence


class Lane:
    """The waiting and running sequences of the short or the long lane.

    share: of step time, places and cache that the lane is sure of when both have work. running keeps the order
    in which sequences were started.
    """

    def __init__(self, share: float, accounts: TenantAccounts, ageing: float) -> None:
        self.share = share
        self.waiting = WaitingQueue(accounts, ageing)
        self.running: dict[Sequence, None] = {}

    @property
    def blocks(self) -> int:
        """Blocks of one cache group that the lane's running sequences have in their tables, shared ones each."""
        return sum(sequence.blocks.count for sequence in self.running if sequence.blocks is not None)
