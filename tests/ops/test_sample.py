"""Sample against its definition on every path: ids, log-probabilities, states of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

from ops.sample_columns import RowStatus
from tests.ops.runner import KERNELS, REFUSED, run
from tests.ops.sample_case import Row, by_kernel, by_reference, check, inputs_of

SIZES = (1, 3, 31, 32, 33, 255, 256, 257, 1000, 4099)


def made(rows: int, size: int, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, size)) * spread).astype(np.float32)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("size", SIZES)
def test_greedy_takes_the_first_of_the_best(size: int, kernels: str) -> None:
    logits = made(5, size)
    logits[1] = 1.5
    logits[2, size // 2 :] = 100
    logits[3, :] = -np.inf
    logits[3, -1] = -3e38
    found = by_kernel(logits, [Row()] * 5, kernels=kernels)
    np.testing.assert_array_equal(found.ids, logits.argmax(axis=1))
    assert not found.status.any() and found.top_ids.shape == (5, 0)


KINDS = {
    "temperature": Row(temperature=1.0),
    "cold": Row(temperature=0.05),
    "hot": Row(temperature=50.0),
    "top_k": Row(temperature=1.0, top_k=5),
    "top_k of one": Row(temperature=1.0, top_k=1),
    "large top_k": Row(temperature=1.3, top_k=700),
    "top_p": Row(temperature=1.0, top_p=0.9),
    "tiny top_p": Row(temperature=1.0, top_p=1e-6),
    "high top_p": Row(temperature=2.0, top_p=0.999),
    "min_p": Row(temperature=0.8, min_p=0.05),
    "min_p of one": Row(temperature=0.8, min_p=1.0),
    "all three": Row(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01),
}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
def test_draws(kind: str, kernels: str) -> None:
    equal = total = 0
    for size in SIZES:
        logits = made(24, size, seed=size)
        logits[4:8] = np.round(logits[4:8])  # ties
        logits[8:12, ::3] = -np.inf
        logits[12] = 2.0
        logits[13, 1:] = -np.inf
        rows = [Row(**{**KINDS[kind].__dict__, "position": number, "logprobs": number % 4}) for number in range(24)]
        equal += check(logits, rows, by_kernel(logits, rows, kernels=kernels))
        total += 24
    assert equal >= total - 2


@pytest.mark.parametrize("kernels", KERNELS)
def test_processors(kernels: str) -> None:
    size = 1000
    rng = np.random.default_rng(3)
    logits = made(12, size, seed=4)
    tokens = [(int(token), int(rng.integers(0, 4))) for token in rng.permutation(size)[:400]]
    bias = [(int(token), float(rng.uniform(-100, 100))) for token in rng.integers(0, size, 50)]
    bans = [(int(token), -np.inf) for token in logits[3].argsort()[-20:]]
    allowed = sorted(rng.permutation(size)[:70].tolist())
    rows = [
        Row(repetition=1.7, tokens=tokens),
        Row(presence=1.5, tokens=tokens),
        Row(frequency=-0.7, tokens=tokens, temperature=1.0),
        Row(bias=bans),
        Row(bias=bias, temperature=1.0, logprobs=3),
        Row(allowed=allowed, temperature=1.0, top_p=0.8),
        Row(allowed=allowed, bias=bias, tokens=tokens, repetition=0.5, presence=-1, frequency=2, logprobs=20),
        Row(allowed=[999]),
        Row(allowed=[0], logprobs=1),
        Row(tokens=tokens, bias=[(token, -np.inf) for token, _ in tokens], repetition=2.0, temperature=0.7),
        Row(forced=17, logprobs=5),
        Row(forced=0, logprobs=0, temperature=1.0),
    ]
    found = by_kernel(logits, rows, kernels=kernels)
    assert check(logits, rows, found) == len(rows)
    assert found.ids[7] == 999 and found.ids[10] == 17
    assert not {token for token, _ in bans} & {int(found.ids[3])}


@pytest.mark.parametrize("kernels", KERNELS)
def test_unusable_rows_are_named_and_leave_the_others_alone(kernels: str) -> None:
    for wanted in (Row(), Row(temperature=1.0), Row(logprobs=2), Row(forced=1, logprobs=1), Row(bias=[(0, 1.0)])):
        logits = made(7, 300)
        sound = by_kernel(logits, [wanted] * 7, kernels=kernels)
        logits[1, 299] = np.nan
        logits[2, 4] = np.inf
        logits[3] = -np.inf
        logits[4, 0] = np.nan
        found = by_kernel(logits, [wanted] * 7, kernels=kernels)
        assert found.status.tolist() == [0, 1, 1, 1, 1, 0, 0]
        for row in (0, 5, 6):
            assert found.ids[row] == sound.ids[row] and found.logprobs[row] == sound.logprobs[row]
        check(logits, [wanted] * 7, found)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_row_that_may_choose_nothing_says_so(kernels: str) -> None:
    logits = made(4, 40)
    logits[2, :20] = -np.inf
    rows = [
        Row(allowed=[]),
        Row(bias=[(token, -np.inf) for token in range(40)], temperature=1.0),
        Row(allowed=list(range(20)), temperature=1.0),
        Row(bias=[(3, 3e38), (3, 3e38)]),
    ]
    found = by_kernel(logits, rows, kernels=kernels)
    assert found.status.tolist() == [RowStatus.NOTHING_ALLOWED] * 3 + [RowStatus.NOT_FINITE]
    check(logits, rows, found)


@pytest.mark.parametrize("kernels", KERNELS)
def test_extreme_temperatures_and_scores(kernels: str) -> None:
    logits = np.array([[-3e38, 3e38, 1.0, -np.inf, 2.9e38]] * 4, np.float32)
    rows = [Row(temperature=t, top_p=p) for t, p in ((1e-38, 1.0), (1e-5, 0.5), (100.0, 1.0), (100.0, 0.99))]
    found = by_kernel(logits, rows, kernels=kernels)
    assert found.ids.tolist() == [1] * 4
    check(logits, rows, found)


row = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 30.0]),
    top_k=st.sampled_from([0, 1, 3, 50, 1000]),
    top_p=st.sampled_from([1e-7, 0.3, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition=st.sampled_from([1.0, 1.3]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**40),
    logprobs=st.integers(-1, 4),
    tokens=st.lists(st.tuples(st.integers(0, 63), st.integers(0, 3)), max_size=5, unique_by=lambda pair: pair[0]),
    bias=st.lists(st.tuples(st.integers(0, 63), st.sampled_from([-np.inf, 5.0])), max_size=3),
    allowed=st.none() | st.lists(st.integers(0, 63), min_size=4, max_size=40, unique=True),
)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(row, min_size=1, max_size=9), seed=st.integers(0, 2**32 - 1), kernels=st.sampled_from(KERNELS))
def test_a_row_does_not_depend_on_its_neighbours(rows: list[Row], seed: int, kernels: str) -> None:
    logits = np.random.default_rng(seed).standard_normal((len(rows), 64)).astype(np.float32) * 4
    logits[:, ::7] = -np.inf
    logits[:, 3:6] = 1.5
    together = by_kernel(logits, rows, kernels=kernels)
    check(logits, rows, together)
    single = by_kernel(logits, rows, kernels=kernels, threads=1)
    for number, one in enumerate(rows):
        alone = by_kernel(logits[number : number + 1], [one], kernels=kernels)
        assert together.ids[number] == alone.ids[0] == single.ids[number]
        assert together.logprobs[number] == alone.logprobs[0] == single.logprobs[number]


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_vocabulary_as_large_as_they_come(kernels: str) -> None:
    logits = made(4, 151_936, seed=9)
    tokens = [(token, 1 + token % 3) for token in range(0, 150_000, 150)]
    rows = [
        Row(temperature=1.0, top_k=50, top_p=0.9, repetition=1.1, presence=0.5, tokens=tokens, logprobs=20),
        Row(temperature=1.0, top_p=0.95, logprobs=0),
        Row(temperature=1.0, logprobs=0),
        Row(temperature=0.3, top_k=1000),
    ]
    assert check(logits, rows, by_kernel(logits, rows, kernels=kernels)) == 4


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("shape", ["flat", "steep", "rising", "few", "ties"])
def test_nuclei_of_wide_rows(shape: str, kernels: str) -> None:
    """Where the nucleus is guessed from some blocks of a row, also where these are unlike the others."""
    size = 20_000
    rng = np.random.default_rng(2)
    logits = (rng.standard_normal((12, size)) * {"flat": 0.1, "steep": 6.0}.get(shape, 1.0)).astype(np.float32)
    if shape == "rising":
        logits += np.linspace(0, 9, size, dtype=np.float32)
    if shape == "few":
        logits[:, np.arange(size) // 256 % 8 == 0] -= 50
    if shape == "ties":
        logits = np.round(logits)
    rows = [Row(temperature=0.5 + number % 3, top_p=0.3 + 0.05 * number, position=number) for number in range(12)]
    assert check(logits, rows, by_kernel(logits, rows, kernels=kernels)) >= 11


def test_no_rows_and_rows_that_are_not_looked_at() -> None:
    logits = made(3, 20)
    assert by_kernel(logits, []).ids.shape == (0,)
    assert by_kernel(logits, [Row()]).ids.tolist() == [int(logits[0].argmax())]
    assert by_reference(logits, []).ids.shape == (0,)


def test_refusals() -> None:
    logits = made(2, 20)
    good = inputs_of(logits, [Row(), Row(tokens=[(3, 1)])])
    wrong = {
        "settings": (np.zeros((3, 6), np.float32), r"settings has shape \[3, 6\]"),
        "numbers": (np.zeros((2, 5), np.int64), r"numbers has shape \[2, 5\]"),
        "token_start": (np.array([0, 1], np.int32), r"token_start has shape"),
        "token_ids": (np.array([20], np.int32), "token_ids holds 20"),
        "token_counts": (np.zeros(2, np.int32), "token_ids has 1 entries"),
        "bias_start": (np.array([0, 1, 0], np.int32), "bias_start does not rise"),
        "masks": (np.zeros((1, 2), np.uint32), r"masks has shape \[1, 2\]"),
    }
    for name, (value, message) in wrong.items():
        with pytest.raises(REFUSED, match=message):
            run("Sample", {**good, name: value}, {})
    for column, message in ((4, "forces token 20"), (5, "names mask 20 of 0")):
        numbers = good["numbers"].copy()
        numbers[1, column] = 20
        with pytest.raises(REFUSED, match=message):
            run("Sample", {**good, "numbers": numbers}, {})
