"""CostModel: what it learns, and the chunks that it allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcore.scheduler.cost_model import TILE, CostModel, attended


def taught(base: float, per_token: float, per_attended: float, noise: float = 0.0, steps: int = 300) -> CostModel:
    model = CostModel()
    random = np.random.default_rng(3)
    for _ in range(steps):
        tokens, context = int(random.integers(1, 600)), int(random.integers(1, 60_000))
        seconds = base + per_token * tokens + per_attended * context
        model.observe(tokens, context, seconds * (1 + noise * random.standard_normal()))
    return model


@pytest.mark.parametrize("truth", [(5e-3, 2e-5, 3e-8), (2e-2, 1e-3, 1e-7), (1e-4, 1e-6, 1e-9)])
def test_learns_machines_far_from_the_first_guess(truth: tuple[float, float, float]) -> None:
    model = taught(*truth, noise=0.005)
    for tokens, context in ((1, 100), (500, 100), (64, 50_000)):
        expected = truth[0] + truth[1] * tokens + truth[2] * context
        assert model.predict(tokens, context) == pytest.approx(expected, rel=0.1)


def test_follows_a_machine_that_changes() -> None:
    model = taught(5e-3, 2e-5, 3e-8)
    random = np.random.default_rng(4)
    for _ in range(1500):
        tokens, context = int(random.integers(1, 600)), int(random.integers(1, 60_000))
        model.observe(tokens, context, 2 * (5e-3 + 2e-5 * tokens + 3e-8 * context))
    assert model.predict(256, 10_000) == pytest.approx(2 * (5e-3 + 2e-5 * 256 + 3e-4), rel=0.1)


def test_one_outlier_moves_the_fit_little() -> None:
    model = taught(5e-3, 2e-5, 3e-8)
    before = model.predict(256, 10_000)
    model.observe(256, 10_000, 100 * before)
    assert model.predict(256, 10_000) < 1.3 * before


def test_steps_that_are_all_alike_do_not_unlearn_the_rest() -> None:
    model = taught(5e-3, 2e-5, 3e-8)
    for _ in range(20_000):
        model.observe(16, 4000, 5e-3 + 2e-5 * 16 + 3e-8 * 4000)
    model.observe(512, 4000, 5e-3 + 2e-5 * 512 + 3e-8 * 4000)
    assert model.predict(512, 4000) == pytest.approx(5e-3 + 2e-5 * 512 + 3e-8 * 4000, rel=0.2)


@given(
    seconds=st.floats(1e-5, 1.0),
    begin=st.integers(0, 100_000),
    per_token=st.floats(1e-6, 1e-3),
    per_attended=st.floats(0, 1e-6),
)
def test_a_chunk_is_the_largest_that_fits(
    seconds: float, begin: int, per_token: float, per_attended: float
) -> None:
    model = CostModel(1e-3, per_token, per_attended)
    tokens = model.chunk(seconds, begin)
    if tokens:
        assert model.prefill(tokens, begin) <= seconds * (1 + 1e-6)
    assert model.prefill(tokens + 1, begin) > seconds * (1 - 1e-6) or abs(tokens - TILE) < 2


@pytest.mark.parametrize(("begin", "tokens", "expected"), [(0, 1, 1), (9, 1, 10), (10, 2, 11.5), (100, 64, 264.0)])
def test_attended(begin: int, tokens: int, expected: float) -> None:
    assert attended(begin, tokens) == pytest.approx(expected, rel=0.01)
