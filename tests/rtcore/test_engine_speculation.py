"""The engine with drafts: the same answers in fewer steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ops.errors import EngineError
from rtcore.decoding.grammar.spec import StructuredOutputs
from rtcore.decoding.params import SamplingParams
from rtcore.decoding.speculation.ngram import NgramProposer
from rtcore.engine import Engine
from rtcore.request import EngineRequest
from tests.rtcore.decoding.grammar.words import load_words
from tests.rtcore.engine_requests import PROMPTS, assert_clean, greedy, request
from tests.rtcore.fakes import Deltas, FakeExecutor, advance, drain, fake_engine, tokens_of
from tests.rtcore.guessing import Prophet, Raising, speculate

Make = Callable[..., EngineRequest]

PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "draws": {"temperature": 1.0, "seed": 7},
    "nucleus": {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.01, "seed": 8},
    "penalties": {"temperature": 1.0, "seed": 9, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "penalties, greedy": {"presence_penalty": 1.5},
    "bans": {"logit_bias": {30: 5.0}, "banned_token_ids": (40, 41), "bad_word_ids": ((30, 30),)},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": (30, 31, 32), "temperature": 1.0, "seed": 3},
    "logprobs": {"logprobs": 3, "temperature": 1.0, "seed": 4},
    "prompt logprobs": {"prompt_logprobs": 2, "logprobs": 0},
    "grammar": {"structured_outputs": StructuredOutputs(regex="[0-9]{4,20}"), "temperature": 1.0, "seed": 5},
    "allowed": {"allowed_token_ids": tuple(range(20, 40)), "temperature": 1.0, "seed": 6},
}


def make(number: int, name: str, **more: Any) -> EngineRequest:
    params = {"temperature": 0.0, "max_tokens": 20, **PARAMS[name], **more}
    return EngineRequest(f"{name}{number}", PROMPTS[number % len(PROMPTS)], SamplingParams(**params))


def run(requests: list[EngineRequest], engine: Engine) -> Deltas:
    for one in requests:
        engine.submit(one)
    deltas = drain(engine)
    assert_clean(engine)
    engine.close()
    return deltas


def said(deltas: Deltas) -> dict[str, Any]:
    """What each request was answered, however many tokens came at a time."""
    return {
        name: (
            tokens_of(found),
            found[-1].finish_reason,
            found[-1].stop_reason,
            [entry for delta in found for entry in delta.logprobs],
            [entry for delta in found for entry in delta.prompt_logprobs],
        )
        for name, found in deltas.items()
    }


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize(
    "wrong", [lambda position: False, lambda position: position % 3 == 0], ids=["right", "wrong"]
)
def test_answers_are_those_without_drafts(name: str, wrong: Callable[[int], bool]) -> None:
    requests = [make(number, name) for number in range(4)]
    plain = run(requests, fake_engine(vocabulary=load_words))
    whole = {one.id: [*one.prompt_ids, *tokens_of(plain[one.id])] for one in requests}
    engine = fake_engine(vocabulary=load_words)
    drafting = speculate(engine, Prophet(whole.__getitem__, wrong))
    assert said(run(requests, engine)) == said(plain)
    assert drafting.drafted > 0
    # A draft that ends its request is no step saved, so it does not count as one that held.
    assert drafting.accepted >= drafting.drafted - len(requests) or wrong(0)


def test_every_draft_that_holds_saves_a_step() -> None:
    whole = {"r1": [*PROMPTS[1], *greedy(PROMPTS[1], 20, stop=())]}
    engine = fake_engine(stop_ids=())
    drafting = speculate(engine, Prophet(whole.__getitem__), most=4)
    engine.submit(request(1, max_tokens=20))
    deltas = drain(engine)["r1"]
    # One token by the prompt's own step, then five a step, and of the last step no more than there is room for.
    assert [len(delta.token_ids) for delta in deltas] == [1, 5, 5, 5, 4]
    assert engine.stats().steps == 5
    assert (
        (engine.stats().drafts, engine.stats().drafts_accepted) == (drafting.drafted, drafting.accepted) == (15, 15)
    )


def test_a_stop_id_within_the_drafts_ends_the_request_there() -> None:
    tokens = greedy(PROMPTS[2], 20, stop=())
    stop = tokens[6]
    assert stop not in tokens[:6]
    engine = fake_engine(stop_ids=())
    speculate(engine, Prophet({"r2": [*PROMPTS[2], *tokens]}.__getitem__))
    engine.submit(request(2, max_tokens=20, stop_token_ids=(stop,)))
    deltas = drain(engine)["r2"]
    assert tokens_of(deltas) == tokens[:7]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    assert engine.stats().tokens_generated == 7


def test_max_tokens_is_never_passed() -> None:
    for count in range(1, 9):
        whole = {"r3": [*PROMPTS[3], *greedy(PROMPTS[3], 20, stop=())]}
        engine = fake_engine(stop_ids=())
        speculate(engine, Prophet(whole.__getitem__))
        engine.submit(request(3, max_tokens=count))
        deltas = drain(engine)["r3"]
        assert tokens_of(deltas) == whole["r3"][len(PROMPTS[3]) :][:count]
        assert deltas[-1].finish_reason == "length"


def test_only_accepted_tokens_become_cached_blocks() -> None:
    """Requests that begin with what another was refused as drafts must not find that in the cache."""
    tokens = greedy(PROMPTS[1], 30, stop=())
    whole = {"r1": [*PROMPTS[1], *tokens]}
    engine = fake_engine(stop_ids=())
    speculate(engine, Prophet(whole.__getitem__, lambda position: position % 2 == 0, lambda token: 50))
    engine.submit(request(1, max_tokens=30))
    assert tokens_of(drain(engine)["r1"]) == tokens
    for cut in range(0, 30, 3):
        for lie in ([], [50], [50, 50]):
            prompt = [*PROMPTS[1], *tokens[:cut], *lie]
            name = f"after{cut}{lie}"
            whole[name] = [*prompt, *greedy(prompt, 4, stop=())]
            engine.submit(EngineRequest(name, prompt, SamplingParams(temperature=0, max_tokens=4)))
            assert tokens_of(drain(engine)[name]) == whole[name][len(prompt) :]
    assert engine.stats().cache.hit_tokens > 0


def test_steps_that_only_fail_with_drafts_go_on_without_them() -> None:
    """What the drafts had reserved is given back, although the step without them ran."""
    executor = FakeExecutor()
    executor.fault = lambda inputs: (
        EngineError("drafts") if inputs.plan[2] > 1 and inputs.positions[0] >= len(PROMPTS[1]) else None
    )
    whole = {"r1": [*PROMPTS[1], *greedy(PROMPTS[1], 20, stop=())]}
    engine = fake_engine(executor, stop_ids=())
    drafting = speculate(engine, Prophet(lambda name: whole[name] if executor.runs < 4 else []), most=9)
    engine.submit(request(1, max_tokens=20))
    assert tokens_of(drain(engine)["r1"]) == whole["r1"][len(PROMPTS[1]) :]
    assert engine.stats().aborted_steps > 0 and drafting.accepted == 0


def test_drafts_never_preempt_anybody_and_yield_to_prompts() -> None:
    executor = FakeExecutor(num_blocks=(40,))
    requests = [make(number, "greedy", max_tokens=12) for number in range(6)]
    plain = fake_engine(FakeExecutor(num_blocks=(40,)), max_step_tokens=12, max_sequences=4)
    answers = run(requests, plain)
    engine = fake_engine(executor, max_step_tokens=12, max_sequences=4)
    whole = {one.id: [*one.prompt_ids, *tokens_of(answers[one.id])] for one in requests}
    speculate(engine, Prophet(whole.__getitem__), most=8)
    assert said(run(requests, engine)) == said(answers)
    assert all(tokens <= 12 for tokens, _ in executor.seen)
    assert engine.stats().preemptions <= plain.stats().preemptions


def test_a_full_cache_leaves_no_room_for_drafts() -> None:
    tokens = greedy(PROMPTS[0], 40, stop=())
    executor = FakeExecutor(num_blocks=(11,))
    engine = fake_engine(executor, stop_ids=())
    speculate(engine, Prophet({"r0": [*PROMPTS[0], *tokens]}.__getitem__), most=16)
    engine.submit(request(0, max_tokens=40))
    assert tokens_of(drain(engine)["r0"]) == tokens
    assert engine.stats().preemptions == 0


def test_requests_may_opt_out() -> None:
    engine = fake_engine()
    prophet = Prophet(lambda name: [5] * 100)
    speculate(engine, prophet)
    engine.submit(request(1, speculation=False))
    drain(engine)
    assert prophet.asked == []


def test_a_proposer_that_fails_is_given_up_and_nobody_notices() -> None:
    engine = fake_engine(stop_ids=())
    drafting = speculate(engine, Raising())
    engine.submit(request(1, max_tokens=30))
    deltas = drain(engine)["r1"]
    assert tokens_of(deltas) == greedy(PROMPTS[1], 30, stop=())
    assert drafting.drafted > 0
    before = drafting.drafted
    engine.submit(request(2, max_tokens=30))
    drain(engine)
    assert drafting.drafted == before


def test_proposers_learn_who_ended_and_are_closed() -> None:
    prophet = Prophet(lambda name: [5] * 100)
    engine = fake_engine()
    speculate(engine, prophet)
    engine.submit(request(1))
    engine.submit(request(2))
    advance(engine, {})
    advance(engine, {})
    engine.cancel("r2")
    drain(engine)
    assert sorted(prophet.forgotten) == ["r1", "r2"]
    engine.close()
    engine.close()
    assert prophet.closed == 1


def test_prompt_lookup_in_a_loop() -> None:
    """A model that repeats itself is guessed from its own text."""
    executor = FakeExecutor()
    executor._logits = lambda inputs, row: _cycle(inputs, row)  # type: ignore[method-assign]
    engine = fake_engine(executor, stop_ids=())
    drafting = speculate(engine, NgramProposer(), most=6)
    engine.submit(EngineRequest("r", [10], SamplingParams(temperature=0, max_tokens=60)))
    assert tokens_of(drain(engine)["r"]) == [10 + (number + 1) % 5 for number in range(60)]
    assert engine.stats().steps < 25
    assert drafting.accepted > 40


def _cycle(inputs: Any, row: int) -> Any:
    logits = np.zeros(97)
    logits[10 + (int(inputs.input_ids[row]) - 9) % 5] = 9
    return logits
