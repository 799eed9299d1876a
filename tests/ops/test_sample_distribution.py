"""What Sample draws has the reference's distribution: chi-square over draws whose number is derived.

A test of level ALPHA over k classes rejects where the statistic passes the quantile of chi-square with k - 1
degrees of freedom. Draws of another distribution q have a statistic whose mean is larger by n * sum((q - p)^2 / p);
the number of draws is chosen so that a temperature that is 5 % off is noticed with the same certainty.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("onnx")

from ops.reference.sample import kept, processed
from ops.sample_columns import Number
from tests.ops.runner import KERNELS, run
from tests.ops.sample_case import Row, inputs_of

# Of false alarms, and of overlooking a wrong distribution; the standard normal's quantile of it.
ALPHA, Z = 1e-4, 3.719
SIZE = 300


def limit(freedom: int) -> float:
    """The upper ALPHA quantile of chi-square (Wilson and Hilferty 1931)."""
    return freedom * (1 - 2 / (9 * freedom) + Z * (2 / (9 * freedom)) ** 0.5) ** 3


def draws_needed(p: np.ndarray, q: np.ndarray) -> int:
    """Draws after which q is told from p: the mean excess passes the limit by Z deviations of the statistic."""
    share = float(((q - p) ** 2 / p).sum())
    freedom = len(p) - 1
    excess = limit(freedom) - freedom
    for _ in range(20):  # the deviation grows with the excess: sqrt(2 k + 4 excess)
        excess = limit(freedom) - freedom + Z * math.sqrt(2 * freedom + 4 * excess)
    return math.ceil(excess / share)


def probabilities(logits: np.ndarray, row: Row) -> np.ndarray:
    inputs = inputs_of(logits[None], [row])
    mask = None if row.allowed is None else inputs["masks"][0]
    lists = (inputs["token_ids"], inputs["token_counts"]), (inputs["bias_ids"], inputs["bias_values"])
    scores = processed(logits, inputs["settings"][0], *lists, mask)
    ids, weights = kept(scores, inputs["settings"][0], row.top_k)
    p = np.zeros(len(logits))
    p[ids] = weights / weights.sum()
    return p


def classes(p: np.ndarray, count: int) -> np.ndarray:
    """The class of each token: one of its own for common ones, the rest together; each expects 5 draws at least."""
    order = np.argsort(-p, kind="stable")
    common = int((p * count >= 5).sum())
    found = np.full(len(p), common)
    found[order[:common]] = np.arange(common)
    return found


def many(logits: np.ndarray, row: Row, count: int) -> dict[str, np.ndarray]:
    """The inputs of `count` rows that differ in their positions alone."""
    inputs = inputs_of(logits[None], [row])
    for name in ("logits", "settings", "numbers", "token_ids", "token_counts", "bias_ids", "bias_values"):
        inputs[name] = np.repeat(inputs[name][None], count, 0).reshape(-1, *inputs[name].shape[1:])
    inputs["numbers"][:, Number.POSITION] = np.arange(count)
    for name in ("token_start", "bias_start"):
        inputs[name] = np.arange(count + 1, dtype=np.int32) * inputs[name][1]
    return inputs


CASES = {
    "temperature": Row(temperature=1.0),
    "cool": Row(temperature=0.6),
    "top_k": Row(temperature=1.2, top_k=12),
    "top_p": Row(temperature=1.0, top_p=0.85),
    "min_p": Row(temperature=1.5, min_p=0.1),
    "mask": Row(temperature=1.0, allowed=list(range(0, SIZE, 3))),
    "penalties": Row(
        temperature=1.0, repetition=1.5, frequency=0.4, tokens=[(n, n % 3) for n in range(0, SIZE, 2)]
    ),
}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_distribution(case: str, kernels: str) -> None:
    row = CASES[case]
    logits = (np.random.default_rng(5).standard_normal(SIZE) * 2).astype(np.float32)
    p = probabilities(logits, row)
    off = probabilities(logits, Row(**{**row.__dict__, "temperature": row.temperature * 1.05}))
    known = p > 0
    count = draws_needed(p[known], np.where(off[known] > 0, off[known], 0))
    assert 1000 < count < 200_000
    ids = run("Sample", many(logits, row, count), {}, kernels=kernels)["ids"]
    grouping = classes(p, count)
    size = grouping.max() + 1
    expected = np.bincount(grouping, p * count, size)
    observed = np.bincount(grouping[ids], minlength=size)
    assert observed[expected == 0].sum() == 0
    counted = expected > 0
    statistic = float(((observed - expected)[counted] ** 2 / expected[counted]).sum())
    assert statistic < limit(int(counted.sum()) - 1)
    # The control: the same draws do not pass for those of a temperature that is 5 % off.
    wrong = np.bincount(grouping, off * count, size)
    told = wrong > 0
    assert float(((observed - wrong)[told] ** 2 / wrong[told]).sum()) > limit(int(told.sum()) - 1)
