"""Philox4x32-10 against the known answers of its authors, and the uniform numbers made of it."""

from __future__ import annotations

import numpy as np
import pytest

from ops.reference.philox import philox, uniform

# Random123's kat_vectors for philox4x32 with 10 rounds: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    words = philox(
        tuple(np.array([word], np.uint64) for word in counter),  # type: ignore[arg-type]
        tuple(np.array([word], np.uint64) for word in key),  # type: ignore[arg-type]
    )
    assert tuple(int(word[0]) for word in words) == expected


def test_uniform_is_a_function_of_seed_and_position_alone() -> None:
    seeds = np.array([1, 2, 2**64 - 1, 1], np.uint64)
    positions = np.array([0, 0, 2**40, 5], np.uint64)
    together = uniform(seeds, positions)
    apart = [uniform(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(4)]
    assert together.tolist() == apart
    assert len(set(apart)) == 4


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    count, bins = 100_000, 50
    numbers = uniform(np.full(count, 42, np.uint64), np.arange(count, dtype=np.uint64))
    assert numbers.min() >= 0 and numbers.max() < 1
    observed = np.bincount((numbers * bins).astype(int), minlength=bins)
    chi_square = float(((observed - count / bins) ** 2 / (count / bins)).sum())
    # 49 degrees of freedom: 1e-4 of fair samples lie above 95.
    assert chi_square < 95
