"""How many drafts are worth it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcore.decoding.speculation.adaptive import DraftLength, StepCost

CHEAP = StepCost(base=0.01, per_token=0.0002, rows=1)
DEAR = StepCost(base=0.0, per_token=0.01, rows=64)


def trained(most: int, drafted: int, accepted: int, times: int = 50) -> DraftLength:
    length = DraftLength(most)
    for _ in range(times):
        length.observe(drafted, accepted)
    return length


def test_more_where_more_hold() -> None:
    assert trained(8, 4, 4).choose(CHEAP) == 8
    assert 1 <= trained(8, 4, 2).choose(CHEAP) < 8
    assert trained(8, 4, 0).choose(CHEAP) == 0


def test_none_where_a_row_costs_as_much_as_a_step() -> None:
    assert trained(8, 4, 2).choose(DEAR) == 0


def test_fewer_where_many_sequences_share_the_step() -> None:
    length = trained(8, 4, 3)
    alone = length.choose(CHEAP)
    crowded = length.choose(StepCost(base=0.01, per_token=0.0002, rows=64))
    assert crowded < alone


def test_proposing_counts() -> None:
    length = trained(8, 4, 3)
    assert length.choose(StepCost(0.01, 0.0002, 1, proposing=0.005)) < length.choose(CHEAP)


def test_it_tries_again_ever_more_rarely_and_at_once_when_that_pays() -> None:
    length = trained(8, 4, 0)
    tried = []
    for step in range(400):
        count = length.choose(CHEAP)
        if count:
            tried.append(step)
            length.observe(count, 0)
    gaps = [after - before for before, after in pairwise(tried)]
    assert len(tried) >= 3
    assert gaps == sorted(gaps) and gaps[-1] > gaps[0]
    assert sum(length.choose(CHEAP) for _ in range(100)) < 20, "little is spent on what does not pay"
    for _ in range(1000):
        count = length.choose(CHEAP)
        length.observe(count, count)
    assert length.choose(CHEAP) == 8


def test_counts() -> None:
    length = DraftLength(4)
    length.observe(3, 2)
    length.observe(0, 0)
    length.observe(2, 0)
    assert (length.drafted, length.accepted) == (5, 2)


@given(
    base=st.floats(0, 1),
    per_token=st.floats(1e-7, 1),
    rows=st.integers(1, 64),
    drafted=st.integers(1, 16),
    share=st.floats(0, 1),
    most=st.integers(1, 16),
)
def test_the_choice_is_the_best_by_the_formula(
    base: float, per_token: float, rows: int, drafted: int, share: float, most: int
) -> None:
    length = trained(most, drafted, int(share * drafted), times=5)
    cost = StepCost(base, per_token, rows)
    rate = length.rate
    assert 0 <= rate <= 1

    def speed(count: int) -> float:
        tokens = count + 1 if math.isclose(rate, 1) else (1 - rate ** (count + 1)) / (1 - rate)
        return tokens / (base / rows + per_token * (count + 1))

    chosen = length.choose(cost)
    best = max(speed(count) for count in range(most + 1))
    # Nothing at all is chosen where the best gains less than 3 %.
    assert speed(chosen) >= best / 1.031


def test_rate_needs_few_steps_to_learn() -> None:
    assert trained(8, 4, 0, times=3).rate < 0.4
    assert trained(8, 4, 4, times=3).rate > 0.9
    assert trained(8, 4, 4, times=1000).rate == pytest.approx(1, abs=0.01)
