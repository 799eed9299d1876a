"""Parking: sequences that wait for a running one to compute the prompt that they share with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rtcore.sequence import Sequence


class Parking:
    """Knows which block every running prompt computes next, so that no other sequence computes it as well.

    A sequence whose next block is being computed is parked until all that it shares with that prompt is in the
    cache, or the prompt's sequence stops: then it takes over the blocks, as a fork. So n answers to one prompt,
    and a burst of requests with one new system prompt, compute it once.
    """

    def __init__(self) -> None:
        self._leaders: dict[int, Sequence] = {}
        self._parked: dict[Sequence, dict[Sequence, int]] = {}
        self._leader_of: dict[Sequence, Sequence] = {}

    def __len__(self) -> int:
        return len(self._leader_of)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._leader_of)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._leader_of

    def park(self, sequence: Sequence, cached: int) -> bool:
        """Have a sequence wait for the one, if any, that computes what follows its first `cached` tokens."""
        if not self._leaders:
            return False
        size = sequence.chain.block_size
        leader = self._leaders.get(sequence.chain.piece(sequence.tokens[: sequence.length], cached // size))
        if leader is None:
            return False
        width = min(sequence.length, leader.length)
        differ = np.flatnonzero(sequence.tokens[:width] != leader.tokens[:width])
        shared = int(differ[0]) if len(differ) else width
        if shared < leader.length:
            shared -= shared % size
        if min(shared, sequence.length - 1) <= max(cached, leader.computed):
            return False
        self._parked.setdefault(leader, {})[sequence] = shared
        self._leader_of[sequence] = leader
        return True

    def advance(self, leader: Sequence) -> list[Sequence]:
        """Note what a running sequence computes next; returns the parked ones that need not wait any longer."""
        self._leave(leader)
        if leader.pending > 0:
            key = leader.chain.piece(leader.tokens[: leader.length], leader.computed // leader.chain.block_size)
            if self._leaders.setdefault(key, leader) is leader:
                leader.frontier = key
        parked = self._parked.get(leader)
        if parked is None:
            return []
        return self._wake([sequence for sequence, shared in parked.items() if shared <= leader.computed])

    def stop(self, leader: Sequence) -> list[Sequence]:
        """A sequence computes no more prompt; returns those that were parked on it."""
        self._leave(leader)
        return self._wake(list(self._parked.get(leader, ())))

    def _leave(self, leader: Sequence) -> None:
        if leader.frontier is not None:
            del self._leaders[leader.frontier]
            leader.frontier = None

    def _wake(self, sequences: list[Sequence]) -> list[Sequence]:
        for sequence in sequences:
            self.discard(sequence)
        return sequences

    def discard(self, sequence: Sequence) -> None:
        """Take a parked sequence out; nothing happens when it is not parked."""
        leader = self._leader_of.pop(sequence, None)
        if leader is not None:
            del self._parked[leader][sequence]
            if not self._parked[leader]:
                del self._parked[leader]
