"""Requests of every kind through the engine, beside each other, against what each must be answered alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.errors import InvalidRequest
from ops.reference.sample import log_softmax
from rtcore.decoding.params import SamplingParams
from rtcore.engine import Engine
from rtcore.request import EngineRequest, TokenDelta, TokenLogprobs
from tests.rtcore.engine_requests import assert_clean
from tests.rtcore.fakes import FakeExecutor, drain, fake_engine, fake_logits, tokens_of
from tests.rtcore.truth import answer

VOCABULARY = 29
STOP = 2
ids = st.integers(0, VOCABULARY - 1)

PARAMS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.0, 0.6, 1.0, 3.0]),
    "top_k": st.sampled_from([-1, 0, 1, 4, 100]),
    "top_p": st.sampled_from([0.3, 0.9, 1.0]),
    "min_p": st.sampled_from([0.0, 0.05]),
    "seed": st.integers(-(2**63), 2**64 - 1),
    "repetition_penalty": st.sampled_from([1.0, 1.3, 0.8]),
    "presence_penalty": st.sampled_from([0.0, 1.5]),
    "frequency_penalty": st.sampled_from([0.0, -0.5, 2.0]),
    "logit_bias": st.dictionaries(ids, st.sampled_from([-100.0, -1.5, 6.0]), max_size=3),
    "allowed_token_ids": st.none() | st.lists(ids, min_size=1, unique=True),
    "banned_token_ids": st.lists(ids, max_size=4),
    "bad_word_ids": st.lists(st.lists(ids, min_size=1, max_size=3), max_size=3),
    "max_tokens": st.integers(1, 12),
    "min_tokens": st.sampled_from([0, 1, 3]),
    "stop_token_ids": st.lists(ids, max_size=2),
    "ignore_eos": st.booleans(),
    "logprobs": st.none() | st.integers(0, 4),
    "prompt_logprobs": st.none() | st.integers(0, 4),
}


@st.composite
def some_params(draw: st.DrawFn) -> SamplingParams:
    chosen = draw(st.lists(st.sampled_from(sorted(PARAMS)), unique=True))
    fields = {name: draw(PARAMS[name]) for name in {*chosen, "seed", "temperature", "max_tokens"}}
    fields["min_tokens"] = min(fields.get("min_tokens", 0), fields["max_tokens"])
    return SamplingParams(**fields)


requests = st.lists(st.tuples(st.lists(ids, min_size=1, max_size=20), some_params()), min_size=1, max_size=7)


def logits_after(tokens: Any) -> np.ndarray:
    return fake_logits(list(tokens), VOCABULARY)


def flat(deltas: list[TokenDelta]) -> list[TokenLogprobs]:
    return [told for delta in deltas for told in delta.logprobs]


def check_answer(prompt: list[int], params: SamplingParams, deltas: list[TokenDelta]) -> None:
    tokens, choices = answer(logits_after, prompt, params, [STOP])
    assert tokens_of(deltas) == tokens
    last = deltas[-1]
    if choices[-1].status[0]:
        assert last.finish_reason == "error" and last.failure is not None
        assert last.failure.kind == "InvalidRequest"
    else:
        assert last.finish_reason in ("stop", "length")
    told = flat(deltas)
    assert len(told) == (0 if params.logprobs is None else len(tokens))
    for one, choice in zip(told, choices, strict=False):
        assert (one.logprob, one.rank) == (float(choice.logprobs[0]), int(choice.ranks[0]))
        assert one.top_ids == choice.top_ids[0].tolist()
        assert one.top_logprobs == [float(value) for value in choice.top_logprobs[0]]
    check_prompt(prompt, params, [told for delta in deltas for told in delta.prompt_logprobs])


def check_prompt(prompt: list[int], params: SamplingParams, told: list[TokenLogprobs]) -> None:
    assert len(told) == (0 if params.prompt_logprobs is None else len(prompt) - 1)
    for place, one in enumerate(told, start=1):
        logs = log_softmax(logits_after(prompt[:place]).astype(np.float32))
        assert one.logprob == float(np.float32(logs[prompt[place]]))
        assert one.rank == 1 + int((logs > logs[prompt[place]]).sum())
        assert len(one.top_ids) == params.prompt_logprobs
        assert one.top_ids == np.argsort(-logs, kind="stable")[: params.prompt_logprobs].tolist()


def engine_of(blocks: int, **config: Any) -> Engine:
    executor = FakeExecutor(num_blocks=[blocks], block_size=4, vocab_size=VOCABULARY)
    return fake_engine(executor, stop_ids=(STOP,), context_length=64, **config)


@settings(max_examples=60, deadline=None)
@given(
    asked=requests,
    blocks=st.integers(9, 24),
    chunk=st.sampled_from([None, 1, 3, 7]),
    sequences=st.integers(1, 6),
    swap=st.sampled_from([0, 1 << 20]),
)
def test_any_request_beside_any_others(
    asked: list[tuple[list[int], SamplingParams]], blocks: int, chunk: int | None, sequences: int, swap: int
) -> None:
    """Small caches preempt, small chunks cut prompts; prefixes of some are found cached by others."""
    engine = engine_of(
        blocks, max_prefill_chunk=chunk, max_sequences=sequences, max_step_tokens=32, swap_bytes=swap
    )
    for number, (prompt, params) in enumerate(asked):
        engine.submit(EngineRequest(f"r{number}", prompt, params))
    deltas = drain(engine)
    for number, (prompt, params) in enumerate(asked):
        check_answer(prompt, params, deltas[f"r{number}"])
    assert_clean(engine)


def test_preempted_requests_tell_the_same_log_probabilities() -> None:
    engine = engine_of(9, max_sequences=4)
    params = [
        SamplingParams(
            seed=number, max_tokens=14, ignore_eos=True, logprobs=2, prompt_logprobs=1, frequency_penalty=0.5
        )
        for number in range(4)
    ]
    prompts = [[3 + number] * (4 + number) for number in range(4)]
    for number, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        engine.submit(EngineRequest(f"r{number}", prompt, one))
    deltas = drain(engine)
    assert engine.stats().preemptions > 0
    for number, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        check_answer(prompt, one, deltas[f"r{number}"])


def test_a_prompt_is_scored_although_it_is_cached() -> None:
    engine = engine_of(30)
    prompt = list(range(3, 23))
    for number, told in enumerate((None, 0, 3)):
        params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, prompt_logprobs=told)
        engine.submit(EngineRequest(f"r{number}", prompt, params))
        check_answer(prompt, params, drain(engine)[f"r{number}"])
    assert engine.stats().cache.hit_tokens == 0


def test_a_step_scores_no_more_of_prompts_than_its_logits_may_take() -> None:
    executor = FakeExecutor(num_blocks=[200], block_size=4, vocab_size=VOCABULARY)
    engine = fake_engine(executor, stop_ids=(STOP,), context_length=512, max_step_tokens=512)
    widest = 0
    run = executor.run

    def watched(inputs: Any) -> None:
        nonlocal widest
        widest = max(widest, len(inputs.logit_rows))
        run(inputs)

    executor.run = watched  # type: ignore[method-assign]
    prompts = [[(7 * place + number) % VOCABULARY for place in range(150)] for number in range(3)]
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, prompt_logprobs=0)
    for number, prompt in enumerate(prompts):
        engine.submit(EngineRequest(f"r{number}", prompt, params))
    deltas = drain(engine)
    assert 64 <= widest <= 64 + 3
    for number, prompt in enumerate(prompts):
        check_prompt(prompt, params, [told for delta in deltas[f"r{number}"] for told in delta.prompt_logprobs])


@pytest.mark.parametrize(
    "field", ["stop_token_ids", "allowed_token_ids", "banned_token_ids", "logit_bias", "bad_word_ids"]
)
def test_ids_outside_the_vocabulary_are_refused(field: str) -> None:
    values: dict[str, Any] = {"logit_bias": {VOCABULARY: 1.0}, "bad_word_ids": [[1, VOCABULARY]]}
    params = SamplingParams(**{field: values.get(field, [1, VOCABULARY])})
    with pytest.raises(InvalidRequest) as caught:
        engine_of(9).submit(EngineRequest("r", [1], params))
    assert caught.value.param == field and str(VOCABULARY) in caught.value.what
