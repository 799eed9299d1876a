"""Exported bundles on the CPU executor: golden logits, and tokens that no scheduling changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.request import EngineRequest
from rtcore.verify import verify
from tests.rtcore.fakes import Deltas, advance, drain, tokens_of

PRECISIONS = ("fp32", "int8", "int4")
COUNT = 6


def requests(vocabulary: int) -> list[EngineRequest]:
    """Greedy and drawn requests with prompts of 1 to 100 tokens."""
    random = np.random.default_rng(4)
    return [
        EngineRequest(
            f"r{number}",
            random.integers(3, vocabulary, 1 + 20 * number).tolist(),
            SamplingParams(
                temperature=number % 2,
                top_p=0.9 if number % 4 == 1 else 1.0,
                seed=number,
                max_tokens=24,
                ignore_eos=True,
            ),
        )
        for number in range(COUNT)
    ]


def answers(bundle: Bundle, *, stagger: int = 0, **config: object) -> tuple[dict[str, list[int]], int]:
    """The tokens of every request, and how often one was preempted; stagger: steps between arrivals."""
    engine = Engine.load(bundle, EngineConfig(debug_invariants=True, **config))  # type: ignore[arg-type]
    deltas: Deltas = {}
    for item in requests(engine.vocab_size):
        engine.submit(item)
        for _ in range(stagger):
            advance(engine, deltas)
    drain(engine, deltas)
    preemptions = engine.stats().preemptions
    engine.close()
    return {name: tokens_of(items) for name, items in deltas.items()}, preemptions


@pytest.mark.export
@pytest.mark.parametrize("precision", PRECISIONS)
def test_scheduling_does_not_change_a_bit(tiny_bundle: Path, precision: str) -> None:
    bundle = Bundle.open(tiny_bundle, "sizes")
    alone, _ = answers(bundle, precision=precision, max_sequences=1)
    assert len(alone) == COUNT and all(len(tokens) == 24 for tokens in alone.values())
    variant = bundle.variant(precision, "cpu")
    item = 4 if precision == "fp32" else 2
    block = 16 * item * sum(int(np.prod(tensor.shape)) for tensor in variant.cache_tensors)
    for config in (
        {"stagger": 2},
        {"max_prefill_chunk": 1, "stagger": 1},
        {"max_prefill_chunk": 7},
        {"max_prefill_chunk": 64, "threads": 1},
        {"block_size": 8},
    ):
        assert answers(bundle, precision=precision, **config)[0] == alone  # type: ignore[arg-type]
    preempted, preemptions = answers(bundle, precision=precision, cache_bytes=14 * block)
    assert preemptions > 0
    assert preempted == alone


@pytest.mark.export
def test_golden_logits_are_reproduced(tiny_bundle: Path) -> None:
    report = verify(tiny_bundle, EngineConfig())
    report.require()
    assert {replay.precision for replay in report.replays} == set(PRECISIONS)
    assert sum(prompt.decisive for replay in report.replays for prompt in replay.prompts) > 0
