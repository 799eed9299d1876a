"""Which works get drafts, and how many, from what a proposer says and the cache has room for."""

from __future__ import annotations

import time
from collections.abc import Sequence as Tokens
from typing import Any

import numpy as np
import pytest

from rtcore.decoding.params import SamplingParams
from rtcore.decoding.speculation.base import Ask, Proposer
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.kvcache.match import Match
from rtcore.request import EngineRequest
from rtcore.scheduler.base import ScheduledStep, Work
from rtcore.scheduler.cost_model import CostModel
from rtcore.scheduler.drafting import Drafting
from rtcore.sequence import Sequence, Status, held

VOCABULARY = 50


class Says(Proposer):
    """Answers every ask with the same."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asks: list[Ask] = []

    def propose(self, asks: list[Ask]) -> list[Tokens[int]]:
        self.asks += asks
        return [self.answer] * len(asks)


class Case:
    """A cache of blocks of four tokens, and sequences that decode in it."""

    def __init__(self, answer: Any, blocks: int = 32, most: int = 6) -> None:
        self.blocks = BlockManager([blocks], 4, max_sequences=8, max_length=128)
        self.proposer = Says(answer)
        self.drafting = Drafting(
            self.proposer,
            most,
            blocks=self.blocks,
            model=CostModel(base=1.0, per_token=1e-6),
            vocab_size=VOCABULARY,
            clock=time.monotonic,
        )
        self.works: list[Work] = []

    def decode(self, length: int, **params: Any) -> Work:
        chosen = SamplingParams(**{"max_tokens": 40, **params})
        request = EngineRequest(f"r{len(self.works)}", [3] * length, chosen)
        sequence = Sequence.create(request, self.blocks.new_chain(CacheKey("")), 0, 0, frozenset())
        sequence.status = Status.RUNNING
        sequence.blocks = self.blocks.open(sequence.chain, Match([]))
        self.blocks.append(sequence.blocks, length, 0)
        sequence.computed = length - 1
        self.works.append(Work(sequence, 1, length, True))
        return self.works[-1]

    def add(self, tokens: int = 100) -> None:
        self.drafting.add(self.works, ScheduledStep(), tokens, len(self.works))


@pytest.mark.parametrize(
    ("answer", "drafts"),
    [
        ((4, 5), (4, 5)),
        ([4, 5, 6, 7, 8, 9, 10, 11], (4, 5, 6, 7, 8, 9)),
        (np.array([4, 5]), (4, 5)),
        ((), ()),
        ((4, VOCABULARY, 5), (4,)),
        ((-1, 5), ()),
    ],
)
def test_what_becomes_of_an_answer(answer: Any, drafts: tuple[int, ...]) -> None:
    case = Case(answer)
    work = case.decode(5)
    case.add()
    assert work.drafts == drafts
    assert work.tokens == 1 + len(drafts)
    assert held(work.sequence).length == 5 + len(drafts)
    assert case.proposer.asks[0].count == 6
    assert case.proposer.asks[0].tokens.tolist() == [3] * 5
    with pytest.raises(ValueError, match="read-only"):
        case.proposer.asks[0].tokens[0] = 1


@pytest.mark.parametrize("answer", [None, ["a"], 3])
def test_an_answer_that_is_none_ends_the_drafts(answer: Any) -> None:
    case = Case(answer)
    work = case.decode(5)
    case.add()
    assert work.drafts == ()
    case.add()
    assert len(case.proposer.asks) == 1


def test_what_is_left_of_the_request_and_of_the_step_bounds_them() -> None:
    case = Case((4,) * 6)
    short, first, second = case.decode(5, max_tokens=3), case.decode(5), case.decode(5)
    last = case.decode(5, max_tokens=1)
    case.add(tokens=6)
    assert [len(work.drafts) for work in (short, first, second, last)] == [2, 4, 0, 0]


def test_blocks_are_left_for_every_running_sequence() -> None:
    case = Case((4,) * 6, blocks=4)
    first, second = case.decode(4), case.decode(3)
    case.add()
    # Two of four blocks are in use, and the other two are spare for the two sequences: what their own blocks hold.
    assert [len(first.drafts), len(second.drafts)] == [0, 1]


def test_drafts_that_did_not_hold_give_their_blocks_back() -> None:
    case = Case((4,) * 6)
    work = case.decode(5)
    free = case.blocks.free_blocks[0]
    case.add()
    assert case.blocks.free_blocks[0] < free
    work.accepted = 1
    work.sequence.append(4)
    work.sequence.computed += 2
    case.drafting.commit(case.works)
    assert case.blocks.free_blocks[0] == free
    assert (case.drafting.drafted, case.drafting.accepted) == (6, 1)
    assert held(work.sequence).length == 6
