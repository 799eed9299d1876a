"""Structured output of real models: every answer is valid, by a validator that knows nothing of the grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from rtcore.decoding.grammar.spec import StructuredOutputs
from rtcore.decoding.params import SamplingParams
from rtcore.llm import LLM
from tests.e2e.schemas import SCHEMAS

MAX_TOKENS = 400
EACH = 10


@pytest.fixture(scope="module")
def tiny(tiny_bundle: Path) -> Iterator[LLM]:
    with LLM(tiny_bundle, cache_bytes=64 << 20, check="sizes") as llm:
        yield llm


def answers(
    llm: LLM, names: list[str], each: int, prompt: str, max_tokens: int
) -> list[tuple[str, str, str | None]]:
    """Schema, text and how it ended, of `each` answers to every schema, all in one batch."""
    params = [
        SamplingParams(
            n=each,
            temperature=1.0,
            seed=100 * number,
            max_tokens=max_tokens,
            structured_outputs=StructuredOutputs(json=SCHEMAS[name]),
        )
        for number, name in enumerate(names)
    ]
    outputs = llm.generate([prompt.format(name) for name in names], params)
    return [
        (name, completion.text, completion.finish_reason)
        for name, output in zip(names, outputs, strict=True)
        for completion in output.outputs
    ]


def invalid(found: list[tuple[str, str, str | None]]) -> list[str]:
    wrong = []
    for name, text, reason in found:
        try:
            jsonschema.validate(json.loads(text), SCHEMAS[name])
        except (ValueError, jsonschema.ValidationError) as error:
            wrong.append(f"{name}, {reason}: {text!r}: {error}")
    return wrong


def test_a_model_that_knows_nothing_answers_validly_too(tiny: LLM) -> None:
    """Random weights: all that an answer is comes from its schema."""
    names = ["person", "sentiment", "numbers", "union", "tuple", "ranges"]
    found = answers(tiny, names, 2, "{}", 300)
    assert len(found) == 12
    assert invalid(found) == []
    assert {reason for *_, reason in found} == {"stop"}


def test_speculation_answers_the_same(tiny_bundle: Path, tiny: LLM) -> None:
    names = ["person", "numbers", "call"]
    with LLM(tiny_bundle, cache_bytes=64 << 20, check="sizes", speculation="ngram") as llm:
        assert answers(llm, names, 2, "{}", 300) == answers(tiny, names, 2, "{}", 300)


@pytest.mark.slow
def test_two_hundred_answers_over_twenty_schemas(smollm2_bundle: Path) -> None:
    assert len(SCHEMAS) * EACH == 200
    with LLM(smollm2_bundle, cache_bytes=512 << 20, check="sizes", max_sequences=32) as llm:
        found = answers(llm, list(SCHEMAS), EACH, "Give me one {} as JSON:\n", MAX_TOKENS)
    assert len(found) == 200
    assert invalid(found) == []


@pytest.mark.slow
def test_other_forms_of_smollm2(smollm2_bundle: Path) -> None:
    forms = {
        "[A-Z][a-z]{2,10} [0-9]{1,4}": StructuredOutputs(regex="[A-Z][a-z]{2,10} [0-9]{1,4}"),
        "yes|no|perhaps": StructuredOutputs(choice=("yes", "no", "perhaps")),
        r"\d{1,3}( [-+] \d{1,3}){1,4}": StructuredOutputs(
            grammar='start: NUM (" " SIGN " " NUM){1,4}\nSIGN: "+" | "-"\nNUM: /[0-9]{1,3}/'
        ),
    }
    with LLM(smollm2_bundle, cache_bytes=256 << 20, check="sizes") as llm:
        for pattern, form in forms.items():
            params = SamplingParams(n=8, temperature=1.0, seed=1, max_tokens=60, structured_outputs=form)
            for completion in llm.generate("What is it?\n", params)[0].outputs:
                assert re.fullmatch(pattern, completion.text)
                assert completion.finish_reason == "stop"
