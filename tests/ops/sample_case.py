"""Rows for Sample, and how far a kernel's answer may be from the reference's.

A kernel sums exponentials in float32: 2^-23 of each for exp, three roundings of its argument a, and a chain of at
most 20 additions before sums go on in float64. So what is drawn may differ from the reference only where the number
falls that close to a border between two tokens, and a nucleus only where its mass comes that close to p.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.reference.philox import uniform
from ops.reference.sample import COLDEST, Sampled, kept, processed, sample
from ops.sample_columns import NEUTRAL_SETTINGS, NO_LOGPROBS, NO_MASK, NOT_FORCED, Number, Setting
from ops.schema import SAMPLE
from tests.ops.runner import run

UNIT = 2.0**-24
Array = NDArray[Any]


@dataclass
class Row:
    """What one row is sampled with; the lists are pairs of token and count or bias."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    seed: int = 7
    position: int = 0
    logprobs: int = NO_LOGPROBS
    forced: int = NOT_FORCED
    tokens: list[tuple[int, int]] = field(default_factory=list)
    bias: list[tuple[int, float]] = field(default_factory=list)
    allowed: list[int] | None = None


def inputs_of(logits: Array, rows: list[Row]) -> dict[str, Array]:
    """The operator's inputs."""
    words = -(-logits.shape[1] // 32)
    masks = [row.allowed for row in rows if row.allowed is not None]
    settings, numbers, mask = [], [], 0
    for row in rows:
        settings.append((row.temperature, row.top_p, row.min_p, row.repetition, row.presence, row.frequency))
        seed = row.seed - 2**64 if row.seed >= 2**63 else row.seed
        named = NO_MASK if row.allowed is None else mask
        mask += row.allowed is not None
        numbers.append((seed, row.position, row.top_k, row.logprobs, row.forced, named))
    flags = np.zeros((len(masks), 32 * words), np.uint8)
    for number, allowed in enumerate(masks):
        flags[number, allowed] = 1
    tokens = [pair for row in rows for pair in row.tokens]
    bias = [pair for row in rows for pair in row.bias]
    return {
        "logits": logits,
        "settings": np.array(settings, np.float32).reshape(-1, len(NEUTRAL_SETTINGS)),
        "numbers": np.array(numbers, np.int64).reshape(-1, len(Number)),
        "token_start": np.cumsum([0, *(len(row.tokens) for row in rows)]).astype(np.int32),
        "token_ids": np.array([token for token, _ in tokens], np.int32),
        "token_counts": np.array([count for _, count in tokens], np.int32),
        "bias_start": np.cumsum([0, *(len(row.bias) for row in rows)]).astype(np.int32),
        "bias_ids": np.array([token for token, _ in bias], np.int32),
        "bias_values": np.array([value for _, value in bias], np.float32),
        "masks": np.packbits(flags, axis=1, bitorder="little").view("<u4").astype(np.uint32).reshape(-1, words),
    }


def by_kernel(logits: Array, rows: list[Row], *, kernels: str = "auto", threads: int = 2) -> Sampled:
    outputs = run("Sample", inputs_of(logits, rows), {}, kernels=kernels, threads=threads)
    return Sampled(*(outputs[one.name] for one in SAMPLE.outputs))


def by_reference(logits: Array, rows: list[Row]) -> Sampled:
    return sample(**inputs_of(logits, rows))


def check(logits: Array, rows: list[Row], found: Sampled, roundings: tuple[int, int] = (2, 3)) -> int:
    """Assert that a kernel's answer is the reference's, within the bound; returns how many ids are equal.

    roundings: of exp's result, and of its argument, in units of half a float32's precision.
    """
    wanted = by_reference(logits, rows)
    np.testing.assert_array_equal(found.status, wanted.status)
    np.testing.assert_array_equal(found.top_ids, wanted.top_ids)
    equal = found.ids == wanted.ids
    for number in np.flatnonzero(~equal & (wanted.status == 0)).tolist():
        assert rows[number].temperature > 0 and rows[number].forced < 0
        assert near_a_border(logits[number], rows[number], int(found.ids[number]), roundings), number
    np.testing.assert_array_equal(found.ranks[equal], wanted.ranks[equal])
    sound = (wanted.status == 0) & (found.logprobs != 0)
    limit = np.zeros(len(rows))
    limit[sound] = [logprob_bound(raw, roundings) for raw in logits[: len(rows)][sound]]
    with np.errstate(invalid="ignore"):
        off = np.abs(found.logprobs.astype(np.float64) - wanted.logprobs)
    off[found.logprobs == wanted.logprobs] = 0  # both -inf
    margin = limit + np.abs(np.nan_to_num(wanted.logprobs, neginf=0)) * UNIT * 2
    assert (off[equal] <= margin[equal]).all()
    tops = np.abs(found.top_logprobs.astype(np.float64) - wanted.top_logprobs)
    assert (tops <= limit[:, None] + np.abs(wanted.top_logprobs) * UNIT * 2).all()
    return int(equal.sum())


def sum_error(weights: Array, arguments: Array, roundings: tuple[int, int] = (2, 3)) -> float:
    """How far, as a share of the whole, a kernel's sum of some of the weights may be off."""
    return float((weights * (roundings[0] + roundings[1] * arguments)).sum() * UNIT / weights.sum()) + 20 * UNIT


def logprob_bound(raw: Array, roundings: tuple[int, int] = (2, 3)) -> float:
    wide = raw[raw > -np.inf].astype(np.float64)
    arguments = wide.max() - wide
    return sum_error(np.exp(-arguments), arguments, roundings)


def near_a_border(raw: Array, row: Row, token: int, roundings: tuple[int, int] = (2, 3)) -> bool:
    """Whether rounding can have made a kernel draw `token`."""
    inputs = inputs_of(raw[None], [row])
    mask = None if row.allowed is None else inputs["masks"][0]
    tokens = inputs["token_ids"], inputs["token_counts"]
    settings = inputs["settings"][0]
    scores = processed(raw, settings, tokens, (inputs["bias_ids"], inputs["bias_values"]), mask)
    seed = np.array([row.seed], np.uint64)
    drawn = float(uniform(seed, np.array([row.position], np.uint64))[0])
    open_settings = settings.copy()
    open_settings[Setting.TOP_P] = 1
    ids, weights = kept(scores, open_settings, row.top_k)
    arguments = (scores.max() - scores[ids].astype(np.float64)) / max(float(settings[0]), COLDEST)
    off = 2 * sum_error(weights, arguments, roundings)
    order = np.argsort(-scores[ids], kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    total = weights.sum()
    share = float(settings[Setting.TOP_P])
    least, most = (
        max(1, int(np.searchsorted(before, (share + sign * off) * total))) if share < 1 else len(ids)
        for sign in (-1, 1)
    )
    for size in range(least, most + 1):
        members = np.sort(order[:size])
        cumulative = np.cumsum(weights[members]) / weights[members].sum()
        place = np.searchsorted(ids[members], token)
        if place < size and ids[members][place] == token:
            low = cumulative[place - 1] if place else 0.0
            if low - off <= drawn <= cumulative[place] + off:
                return True
    return False
