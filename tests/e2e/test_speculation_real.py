"""Speculation with real models: the same tokens in fewer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ops.errors import ConfigError
from rtcore.decoding.params import SamplingParams
from rtcore.llm import LLM
from rtcore.output import CompletionOutput
from server.bench.texts import FREE, REPEATING
from tests.rtcore.guessing import Prophet, speculate

FACTS = (
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "one two three four one two three four one two three",
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return",
    "A B C D E F G A B C D E F G A B C",
)
PROMPTS = (*REPEATING, *FREE, *FACTS, *(f"Summarise in one sentence: {text[-200:]}" for text in REPEATING))
Answers = list[CompletionOutput]
GREEDY = SamplingParams(temperature=0, max_tokens=48)


def run(
    bundle: Path, prompts: list[str], params: SamplingParams, known: Answers | None = None, **config: Any
) -> tuple[Answers, Any]:
    """All answers, and the engine's statistics. known: answers to guess from, some tokens wrong."""
    settings = {"cache_bytes": 256 << 20, "check": "sizes", "max_sequences": 8, **config}
    with LLM(bundle, **settings) as llm:
        if known is not None:
            truths = {
                f"offline-{number // params.n + 1}" + (f"-{number % params.n}" if params.n > 1 else ""): [
                    *llm.frontend.encode(prompts[number // params.n]),
                    *answer.token_ids,
                ]
                for number, answer in enumerate(known)
            }
            speculate(llm._driver.engine, Prophet(truths.__getitem__, lambda position: position % 4 == 0), 5)
        outputs = llm.generate(prompts, params)
        return [completion for output in outputs for completion in output.outputs], llm._driver.engine.stats()


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_a_tiny_model_says_the_same(tiny_bundle: Path, precision: str) -> None:
    prompts = [text[:120] for text in (*FACTS, *REPEATING[:4])]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=40, repetition_penalty=1.1, logprobs=2, n=2)
    whole, _ = run(tiny_bundle, prompts, params, precision=precision)
    stopping = msgspec.structs.replace(params, stop=("e", "th", "\n"))
    plain, _ = run(tiny_bundle, prompts, stopping, precision=precision)
    assert {answer.stop_reason for answer in plain} & {"e", "th", "\n"}
    for chosen, expected in ((params, whole), (stopping, plain)):
        guessed, stats = run(tiny_bundle, prompts, chosen, whole, precision=precision)
        assert guessed == expected
        assert stats.drafts > stats.drafts_accepted > 0


def test_a_model_that_drafts_for_itself_is_always_right(tiny_bundle: Path) -> None:
    """The draft model is the target: every greedy draft holds, through batches and cache alike."""
    prompts = [text[:200] for text in REPEATING]
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    plain, before = run(tiny_bundle, prompts, params, precision="fp32")
    guessed, after = run(
        tiny_bundle, prompts, params, precision="fp32", speculation="draft", draft_bundle=str(tiny_bundle)
    )
    assert guessed == plain
    assert after.drafts > 0
    assert after.drafts_accepted == after.drafts
    assert after.steps < before.steps


def test_a_draft_model_of_another_vocabulary(tiny_bundle: Path, smollm2_bundle: Path) -> None:
    with pytest.raises(ConfigError, match="another vocabulary"):
        LLM(smollm2_bundle, cache_bytes=16 << 20, check="sizes", speculation="draft", draft_bundle=str(tiny_bundle))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_fifty_prompts_of_smollm2(smollm2_bundle: Path, precision: str) -> None:
    """Greedy answers are equal token for token, one at a time and in batches."""
    prompts = [*PROMPTS, *(f"{text}\n\nContinue:" for text in PROMPTS)][:50]
    assert len(prompts) == 50
    plain, before = run(smollm2_bundle, prompts, GREEDY, precision=precision)
    guessed, after = run(smollm2_bundle, prompts, GREEDY, precision=precision, speculation="ngram")
    differing = [number for number, (one, other) in enumerate(zip(plain, guessed, strict=True)) if one != other]
    assert differing == []
    assert after.drafts_accepted > 0
    assert after.steps < before.steps
