"""Proposers whose guesses a test decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rtcore.decoding.speculation.base import Ask, Proposer
from rtcore.engine import Engine
from rtcore.scheduler.cost_model import CostModel
from rtcore.scheduler.drafting import Drafting


class Prophet(Proposer):
    """Knows what comes, and is wrong or makes no sense wherever `wrong` says so of a position."""

    def __init__(
        self,
        truth: Callable[[str], Sequence[int]],
        wrong: Callable[[int], bool] = lambda position: False,
        nonsense: Callable[[int], int] = lambda token: token + 1,
    ) -> None:
        """truth: all tokens of a sequence by its name, prompt first."""
        self._truth = truth
        self._wrong = wrong
        self._nonsense = nonsense
        self.asked: list[Ask] = []
        self.forgotten: list[str] = []
        self.closed = 0

    def propose(self, asks: list[Ask]) -> list[Sequence[int]]:
        self.asked += asks
        drafts: list[Sequence[int]] = []
        for ask in asks:
            begin = len(ask.tokens)
            coming = list(self._truth(ask.key))[begin : begin + ask.count + 2]
            drafts.append(
                [
                    self._nonsense(token) if self._wrong(begin + number) else token
                    for number, token in enumerate(coming)
                ]
            )
        return drafts

    def forget(self, key: str) -> None:
        self.forgotten.append(key)

    def close(self) -> None:
        self.closed += 1


class Raising(Proposer):
    """Fails from the third call on."""

    def __init__(self) -> None:
        self._calls = 0

    def propose(self, asks: list[Ask]) -> list[Sequence[int]]:
        self._calls += 1
        if self._calls > 2:
            raise RuntimeError("the user's own code")
        return [np.array([3] * ask.count) for ask in asks]  # type: ignore[misc]


def speculate(engine: Engine, proposer: Proposer, most: int = 4) -> Drafting:
    """Have an engine use a proposer, with costs by which drafts always pay."""
    scheduler = engine._scheduler
    scheduler._drafting = Drafting(
        proposer,
        most,
        blocks=scheduler._blocks,
        model=CostModel(base=1e3, per_token=1e-3),
        vocab_size=engine.vocab_size,
        clock=engine._clock,
    )
    return scheduler._drafting
