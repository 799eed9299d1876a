"""The engine around a fake executor: what it answers never depends on how it is scheduled."""

from __future__ import annotations

import pytest

from rtcore.decoding.params import SamplingParams
from rtcore.request import EngineRequest
from tests.rtcore.fakes import drain, fake_engine, tokens_of

PROMPTS = [[5 + i + j * 7 % 60 for j in range(1 + 9 * i % 31)] for i in range(9)]


def request(number: int, *, max_tokens: int = 12, **params: object) -> EngineRequest:
    fields = {"temperature": 0.0, "max_tokens": max_tokens, **params}
    return EngineRequest(f"r{number}", PROMPTS[number % len(PROMPTS)], SamplingParams(**fields))


def alone(number: int, **params: object) -> list[int]:
    engine = fake_engine()
    engine.submit(request(number, **params))
    return tokens_of(drain(engine)[f"r{number}"])


@pytest.mark.parametrize("chunk", [1, 7, 16, None])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 3}])
def test_batching_changes_nothing(chunk: int | None, params: dict[str, object]) -> None:
    engine = fake_engine(max_prefill_chunk=chunk, max_step_tokens=32, max_sequences=8)
    for number in range(9):
        engine.submit(request(number, **params))
    deltas = drain(engine)
    for number in range(9):
        assert tokens_of(deltas[f"r{number}"]) == alone(number, **params)
