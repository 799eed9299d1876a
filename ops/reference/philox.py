"""Philox4x32-10: random numbers that are a pure function of a key and a counter.

Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Words = NDArray[np.uint64]


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Four 32-bit words for each counter and key; all are uint64 arrays of one shape holding 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _HALF) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _HALF) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0 = (k0 + _WEYL[0]) & _LOW
        k1 = (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniform(seeds: Words, positions: Words) -> NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each 64-bit seed (the key) and position (the counter)."""
    zero = np.zeros_like(positions)
    words = philox((positions & _LOW, positions >> _HALF, zero, zero), (seeds & _LOW, seeds >> _HALF))
    mantissa = ((words[0] << _HALF) | words[1]) >> np.uint64(11)
    return mantissa.astype(np.float64) * 2.0**-53
