"""Requests for the fake engine, what they must be answered, and the state that an idle engine must be in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.request import EngineRequest
from tests.rtcore.fakes import fake_logits

PROMPTS = [[5 + i + j * 7 % 60 for j in range(1 + 9 * i % 31)] for i in range(9)]


def request(number: int, **params: object) -> EngineRequest:
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 12, **params}
    return EngineRequest(f"r{number}", PROMPTS[number % len(PROMPTS)], SamplingParams(**fields))  # type: ignore[arg-type]


def greedy(prompt: Sequence[int], count: int, stop: Sequence[int] = (2,)) -> list[int]:
    """What greedy decoding gives, without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(fake_logits(tokens, 97))))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


def assert_clean(engine: Engine) -> None:
    stats = engine.stats()
    assert stats.blocks_free == stats.blocks_total
    assert stats.waiting == stats.running == 0
    engine.check_invariants()
