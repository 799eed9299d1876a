"""Sample's kernels against its definition: draws, lists, masks, log-probabilities, states, and feeding."""

from __future__ import annotations

import numpy as np
import pytest

from ops.sample_columns import RowStatus
from ops.triton.sample import sample_feed_kernel
from tests.ops.sample_case import Row, by_reference, check
from tests.ops.test_sample import KINDS, made
from tests.ops.triton.sample_runner import by_triton
from tests.ops.triton.tools import tensor

#: exp is ex2.approx, off by two units in the last place (PTX ISA), of an argument rounded five times.
ROUNDINGS = (4, 5)
SIZES = (1, 33, 700)


@pytest.mark.parametrize("size", SIZES)
def test_greedy_takes_the_first_of_the_best(device: str, size: int) -> None:
    logits = made(5, size)
    logits[1] = 1.5
    logits[2, size // 2 :] = 100
    logits[3, :] = -np.inf
    logits[3, -1] = -3e38
    found = by_triton(logits, [Row()] * 5, device)
    np.testing.assert_array_equal(found.ids, logits.argmax(axis=1))
    assert not found.status.any()


@pytest.mark.parametrize("kind", KINDS)
def test_draws(device: str, kind: str) -> None:
    equal = total = 0
    for size in SIZES:
        logits = made(12, size, seed=size)
        logits[2:4] = np.round(logits[2:4])  # ties
        logits[4:6, ::3] = -np.inf
        logits[6] = 2.0
        logits[7, 1:] = -np.inf
        rows = [Row(**{**KINDS[kind].__dict__, "position": number, "logprobs": number % 4}) for number in range(12)]
        equal += check(logits, rows, by_triton(logits, rows, device), ROUNDINGS)
        total += 12
    assert equal >= total - 2


def test_a_list_without_room_is_searched_in_the_row(device: str) -> None:
    logits = made(6, 1000, spread=0.5)
    rows = [Row(temperature=1.5, top_p=0.97, top_k=top_k, position=top_k) for top_k in (0, 0, 400, 400, 999, 3)]
    for room in (1, 64, 1024):
        assert check(logits, rows, by_triton(logits, rows, device, room=room), ROUNDINGS) >= 5


def test_processors(device: str) -> None:
    size = 1000
    rng = np.random.default_rng(3)
    logits = made(8, size, seed=4)
    tokens = [(int(token), int(rng.integers(0, 4))) for token in rng.permutation(size)[:400]]
    bias = [(int(token), float(rng.uniform(-100, 100))) for token in rng.permutation(size)[:50]]
    bans = [(int(token), -np.inf) for token in logits[3].argsort()[-20:]]
    allowed = sorted(rng.permutation(size)[:70].tolist())
    rows = [
        Row(repetition=1.7, tokens=tokens),
        Row(presence=1.5, tokens=tokens),
        Row(frequency=-0.7, tokens=tokens, temperature=1.0),
        Row(bias=bans, logprobs=2),
        Row(bias=bias, temperature=1.0, top_k=9),
        Row(allowed=allowed, temperature=1.0, top_p=0.8, logprobs=3),
        Row(allowed=allowed, bias=bias, repetition=0.8, tokens=tokens),
        Row(forced=17, logprobs=4),
    ]
    assert check(logits, rows, by_triton(logits, rows, device), ROUNDINGS) >= 7


def test_the_newest_token_counts_before_the_host_knows_it(device: str) -> None:
    logits = made(3, 300, seed=9)
    lists = [[(4, 1), (7, 0)], [(4, 1), (7, 0)], []]
    newest = {0: 7, 1: 200, 2: 5}
    for row, token in newest.items():
        logits[row, token] = 11.0
        logits[row, 30] = 10.0
    rows = [Row(presence=1.5, frequency=0.5, repetition=1.2, tokens=tokens) for tokens in lists]
    found = by_triton(logits, rows, device, pending=newest)
    known = [[(4, 1), (7, 1)], [(4, 1), (7, 0), (200, 1)], [(5, 1)]]
    wanted = by_reference(logits, [Row(presence=1.5, frequency=0.5, repetition=1.2, tokens=one) for one in known])
    np.testing.assert_array_equal(found.ids, wanted.ids)
    assert (found.ids == 30).all()


def test_states_of_rows(device: str) -> None:
    logits = made(7, 300)
    logits[1, 5] = np.nan
    logits[2, 7] = np.inf
    logits[3] = -np.inf
    rows = [Row(logprobs=2), Row(temperature=1.0, logprobs=2), Row(), Row(forced=3, logprobs=1)]
    rows += [Row(allowed=[], logprobs=2), Row(temperature=1.0, allowed=[], top_k=3), Row(bias=[(5, np.inf)])]
    found = by_triton(logits, rows, device)
    check(logits, rows, found, ROUNDINGS)
    bad, none = RowStatus.NOT_FINITE, RowStatus.NOTHING_ALLOWED
    assert found.status.tolist() == [0, bad, bad, bad, none, none, bad]


@pytest.mark.slow
def test_a_vocabulary_of_a_quarter_million(device: str) -> None:
    logits = made(6, 262_144, spread=2.0)
    rows = [Row(), Row(temperature=1.0), Row(temperature=1.0, top_p=0.9, logprobs=20)]
    rows += [Row(temperature=0.7, top_k=50), Row(temperature=2.0, top_p=0.999), Row(temperature=1.0, min_p=0.1)]
    found = by_triton(logits, rows, device, part=4096, room=4096, tile=1024)
    assert check(logits, rows, found, ROUNDINGS) >= 5


def test_sampled_tokens_feed_the_next_step(device: str) -> None:
    ids, source = np.arange(70, dtype=np.int64), np.array([2, -1, 0, -1] * 17, np.int32)
    sampled = np.array([500, 501, 502], np.int64)
    fed = tensor(ids, device)
    sample_feed_kernel[(2,)](fed, tensor(source, device), tensor(sampled, device), len(source), BLOCK=64)
    wanted = ids.copy()
    wanted[:68] = np.where(source >= 0, sampled[source], ids[:68])
    np.testing.assert_array_equal(fed.cpu().numpy(), wanted)
