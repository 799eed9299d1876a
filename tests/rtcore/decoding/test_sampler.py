"""The sampler against plain definitions, its distribution by chi-square, and independence of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcore.decoding.sampler import Sampler, SamplingRows

# Upper 1e-4 quantiles of chi-square by degrees of freedom (Wilson-Hilferty, z = 3.719).
Z = 3.719


def chi_square_limit(freedom: int) -> float:
    return freedom * (1 - 2 / (9 * freedom) + Z * (2 / (9 * freedom)) ** 0.5) ** 3


def rows(
    count: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 11, start: int = 0
) -> SamplingRows:
    return SamplingRows(
        temperature=np.full(count, temperature),
        top_k=np.full(count, top_k, np.int32),
        top_p=np.full(count, top_p),
        seeds=np.full(count, seed, np.uint64),
        positions=np.arange(start, start + count, dtype=np.uint64),
    )


def expected(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution by definition: temperature, then top-k with ties, then top-p in order of likelihood."""
    scores = logits.astype(np.float64) / temperature
    if 0 < top_k < len(scores):
        scores = np.where(scores >= np.sort(scores)[-top_k], scores, -np.inf)
    p = np.exp(scores - scores.max())
    p /= p.sum()
    if top_p < 1:
        kept, mass = np.zeros(len(p), bool), 0.0
        for token in np.argsort(-p, kind="stable"):
            if mass >= top_p:
                break
            kept[token] = p[token] > 0
            mass += p[token]
        p = np.where(kept, p, 0)
    return p / p.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 0, 1.0), (1.0, 7, 1.0), (1.0, 0, 0.8), (0.7, 12, 0.9), (1.3, 1, 1.0)],
)
def test_draws_follow_the_distribution(temperature: float, top_k: int, top_p: float) -> None:
    draws = 8_000
    logits = np.random.default_rng(5).standard_normal(40).astype(np.float32) * 2
    params = rows(draws, temperature=temperature, top_k=top_k, top_p=top_p)
    ids, valid = Sampler().sample(np.broadcast_to(logits, (draws, 40)), params)
    assert valid.all()
    p = expected(logits, temperature, top_k, top_p)
    observed = np.bincount(ids, minlength=40)
    assert observed[p == 0].sum() == 0
    # Rare tokens are pooled, so that every class expects at least five draws.
    common = p * draws >= 5
    classes = [*observed[common], observed[~common].sum()]
    means = [*(p[common] * draws), (p[~common] * draws).sum()]
    statistic = sum((o - e) ** 2 / e for o, e in zip(classes, means, strict=True) if e > 0)
    freedom = sum(e > 0 for e in means) - 1
    if freedom:
        assert statistic < chi_square_limit(freedom)


def test_a_wrong_distribution_is_noticed() -> None:
    """The control: draws at temperature 1 fail the chi-square of temperature 1.1."""
    draws = 20_000
    logits = np.random.default_rng(5).standard_normal(40).astype(np.float32) * 2
    ids, _ = Sampler().sample(np.broadcast_to(logits, (draws, 40)), rows(draws))
    p = expected(logits, 1.1, 0, 1.0)
    assert (p * draws >= 5).sum() > 20
    common = p * draws >= 5
    statistic = (((np.bincount(ids, minlength=40) - p * draws) ** 2 / (p * draws))[common]).sum()
    assert statistic > chi_square_limit(int(common.sum()))


row_params = st.tuples(
    st.sampled_from([0.0, 0.01, 0.7, 1.0, 30.0]),
    st.sampled_from([-1, 0, 1, 3, 50, 1000]),
    st.sampled_from([1e-9, 0.3, 0.95, 1.0]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**20),
)


@settings(max_examples=60, deadline=None)
@given(params=st.lists(row_params, min_size=1, max_size=9), data_seed=st.integers(0, 2**32 - 1))
def test_a_row_does_not_depend_on_its_neighbours(
    params: list[tuple[float, int, float, int, int]], data_seed: int
) -> None:
    logits = np.random.default_rng(data_seed).standard_normal((len(params), 64)).astype(np.float32) * 4
    logits[:, ::7] = -np.inf
    logits[:, 3:6] = 1.5
    temperature, top_k, top_p, seeds, positions = zip(*params, strict=True)
    batch = SamplingRows(
        np.array(temperature),
        np.array(top_k, np.int32),
        np.array(top_p),
        np.array(seeds, np.uint64),
        np.array(positions, np.uint64),
    )
    ids, valid = Sampler().sample(logits, batch)
    assert valid.all()
    for row in range(len(params)):
        one = SamplingRows(*(getattr(batch, name)[row : row + 1] for name in SamplingRows.__slots__))
        assert Sampler().sample(logits[row : row + 1], one)[0][0] == ids[row]
        if temperature[row] == 0:
            assert ids[row] == int(np.argmax(logits[row]))
        else:
            p = expected(logits[row], temperature[row], top_k[row], top_p[row])
            assert p[ids[row]] > 0


def test_unusable_rows_are_named_and_leave_the_others_alone() -> None:
    logits = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    sound = logits.copy()
    logits[1, 4] = np.nan
    logits[2, 0] = np.inf
    logits[3] = -np.inf
    for temperature in (0.0, 1.0):
        params = rows(5, temperature=temperature)
        ids, valid = Sampler().sample(logits, params)
        assert valid.tolist() == [True, False, False, False, True]
        reference, _ = Sampler().sample(sound, params)
        assert ids[[0, 4]].tolist() == reference[[0, 4]].tolist()


def test_extreme_temperatures_do_not_overflow() -> None:
    logits = np.array([[-3e38, 3e38, 1.0, -np.inf]], np.float32)
    for temperature in (1e-300, 1e-5, 100.0):
        with np.errstate(all="raise", under="ignore"):
            ids, valid = Sampler().sample(logits, rows(1, temperature=temperature))
        assert valid.all() and ids[0] == 1
