"""The interface of a proposer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence that drafts are wanted for.

    key: names the sequence as long as it lives. tokens: int64 [n], its prompt and all that it has generated, to be
    read only. count: how many drafts at most, at least 1.
    """

    key: str
    tokens: NDArray[np.int64]
    count: int


class Proposer(ABC):
    """Guesses which tokens come next.

    A guess costs time and never changes what comes out: the model verifies each. What a proposer remembers of a
    sequence must follow from its tokens, and it must cope with a sequence that it has not seen from the start, or
    for a while. Between two calls a sequence only ever grows. One thread uses a proposer.
    """

    @abstractmethod
    def propose(self, asks: list[Ask]) -> list[Sequence[int]]:
        """For each ask up to `count` token ids, the likeliest continuation; none where there is no good guess."""

    def forget(self, key: str) -> None:
        """A sequence has ended. Harmless for one that was never asked about."""
        return

    def close(self) -> None:
        """Give back what the proposer holds. Safe to call twice."""
        return
