"""Sampler: one token a row from logits, with parameters that may differ from row to row.

The order of the processors is temperature, top-k, top-p, as in vLLM (vllm/v1/sample/sampler.py, "apply
temperature", then "apply top_k and/or top_p") and in Hugging Face's generation (TemperatureLogitsWarper,
TopKLogitsWarper, TopPLogitsWarper). Top-k keeps tokens as likely as the k-th too. Top-p (Holtzman et al.,
"The Curious Case of Neural Text Degeneration", 2020) keeps the most likely tokens up to and including the
one with which their probability reaches p; equally likely tokens are taken in the order of their ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rtcore.decoding.philox import uniform
from rtcore.executor.base import Float32, Int32, Int64

# Below it a temperature could not be told from zero in float32; as cold as this, the best token always wins.
_COLDEST = 1e-30


@dataclass(slots=True)
class SamplingRows:
    """Parameters of S rows.

    temperature float64 [S], 0 is greedy; top_k int32 [S], 0 or less keeps all; top_p float64 [S]; seeds
    uint64 [S]; positions uint64 [S], the place in its sequence of the token to be drawn.
    """

    temperature: NDArray[np.float64]
    top_k: Int32
    top_p: NDArray[np.float64]
    seeds: NDArray[np.uint64]
    positions: NDArray[np.uint64]


class Sampler:
    """Chooses tokens. A draw depends on its row's logits, parameters, seed and position and on nothing else."""

    def sample(self, logits: Float32, rows: SamplingRows) -> tuple[Int64, NDArray[np.bool_]]:
        """Ids int64 [S] and whether each is valid, for logits float32 [S, V].

        A row is invalid when its logits hold a NaN or +inf or are all -inf; its id means nothing.
        """
        ids = logits.argmax(axis=1)
        peaks = logits[np.arange(len(ids)), ids]
        valid = np.isfinite(peaks)
        draws = np.flatnonzero((rows.temperature > 0) & valid)
        if len(draws):
            numbers = uniform(rows.seeds[draws], rows.positions[draws])
            for row, number in zip(draws.tolist(), numbers.tolist(), strict=True):
                ids[row] = _draw(
                    logits[row], float(rows.temperature[row]), int(rows.top_k[row]), float(rows.top_p[row]), number
                )
        return ids, valid


def _draw(scores: Float32, temperature: float, top_k: int, top_p: float, number: float) -> int:
    """A token of one row by inversion: tokens in the order of their ids, `number` in [0, 1)."""
    candidates: Int64 | None = None
    if 0 < top_k < len(scores):
        threshold = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
        candidates = np.flatnonzero(scores >= threshold)
        scores = scores[candidates]
    with np.errstate(over="ignore", under="ignore"):
        weights = scores - scores.max()
        weights /= np.float32(max(temperature, _COLDEST))
        np.exp(weights, out=weights)
    if top_p < 1:
        kept = _nucleus(weights, top_p)
        weights = weights[kept]
        candidates = kept if candidates is None else candidates[kept]
    cumulative = np.cumsum(weights, dtype=np.float64)
    total = cumulative[-1]
    index = int(np.searchsorted(cumulative, min(number * total, np.nextafter(total, 0)), side="right"))
    return index if candidates is None else int(candidates[index])


def _nucleus(weights: Float32, top_p: float) -> Int64:
    """Indices, ascending, of the smallest set of largest weights that holds top_p of their sum.

    Weights below (1 - top_p) / n of the sum hold less than 1 - top_p of it together, so none of them can
    belong to the set: only the few others have to be sorted.
    """
    total = float(weights.sum(dtype=np.float64))
    likely = np.flatnonzero(weights > (1 - top_p) / len(weights) * total * 0.999)
    weights = weights[likely]
    falling = np.sort(weights)[::-1]
    before = np.cumsum(falling, dtype=np.float64) - falling
    size = int(np.searchsorted(before, top_p * total))
    last = falling[size - 1]
    kept = weights > last
    # Of those as likely as the last, only as many as the set has room for, in the order of their ids.
    kept[np.flatnonzero(weights == last)[: size - np.count_nonzero(kept)]] = True
    members: Int64 = likely[kept]
    return members
