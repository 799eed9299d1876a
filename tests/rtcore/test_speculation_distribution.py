"""Drafts do not change the distribution: what requests with many seeds are answered, against the reference's
probabilities."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from rtcore.decoding.params import SamplingParams
from rtcore.request import EngineRequest
from tests.rtcore.fakes import FakeExecutor, drain, fake_engine, fake_logits, tokens_of
from tests.rtcore.guessing import Prophet, speculate

PROMPT = [11, 12, 13]
CHOICES = (20, 21, 22)
LENGTH = 3
SAMPLES = 2700
"""A hundred for each of the 27 answers on average; by Cochran's rule each must be expected five times or more."""
CHI_SQUARE = 75.0
"""For 26 degrees of freedom this is passed with a probability below 2e-6 by chance (Pearson's chi-square test)."""


def probabilities(tokens: Sequence[int], temperature: float) -> np.ndarray:
    logits = fake_logits(tokens, 97)[list(CHOICES)].astype(np.float32) / temperature
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def expected(temperature: float) -> dict[tuple[int, ...], float]:
    found = {}
    for answer in itertools.product(CHOICES, repeat=LENGTH):
        share = 1.0
        for number, token in enumerate(answer):
            share *= probabilities([*PROMPT, *answer[:number]], temperature)[CHOICES.index(token)]
        found[answer] = share
    return found


@pytest.mark.parametrize("guess", [(21, 22, 20), (96, 20, 21)], ids=str)
def test_answers_have_the_targets_distribution(guess: tuple[int, ...]) -> None:
    temperature = 8.0
    engine = fake_engine(
        FakeExecutor(num_blocks=(512,)), stop_ids=(), max_sequences=64, max_step_tokens=512, max_queue=SAMPLES
    )
    # After a first token of its own, each request is always told the same, whatever it drew.
    drafting = speculate(engine, Prophet(lambda name: [*PROMPT, 0, *guess]), most=2)
    for seed in range(SAMPLES):
        params = SamplingParams(temperature=temperature, max_tokens=LENGTH, seed=seed, allowed_token_ids=CHOICES)
        engine.submit(EngineRequest(f"r{seed}", PROMPT, params))
    counts = Counter(tuple(tokens_of(deltas)) for deltas in drain(engine).values())
    shares = expected(temperature)
    assert set(counts) <= set(shares)
    assert min(shares.values()) * SAMPLES >= 5
    statistic = sum((counts[answer] - SAMPLES * share) ** 2 / (SAMPLES * share) for answer, share in shares.items())
    assert statistic < CHI_SQUARE
    assert drafting.drafted > SAMPLES / 2
    assert (drafting.accepted > 0) == (guess[0] in CHOICES)
