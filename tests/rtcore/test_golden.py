"""golden.json: what is refused on reading, and when a replay counts as equal."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from rtcore.golden import Golden, GoldenPrecision, GoldenPrompt, compare, decode, encode

PROMPT = GoldenPrompt("p", [5, 6, 7], [0, 2], [[3, 1], [0, 2]], [[4.0, 1.0], [2.0, 1.9]])


def _logits() -> np.ndarray:
    rows = np.full((2, 5), -1.0, np.float32)
    rows[0, [3, 1]], rows[1, [0, 2]] = (4.0, 1.0), (2.0, 1.9)
    return rows


def test_a_record_survives_writing_and_reading() -> None:
    golden = Golden({"fp32": GoldenPrecision(0.1, "measured", [PROMPT])})
    assert decode(encode(golden)) == golden


@pytest.mark.parametrize(
    "change",
    [
        {"positions": [0]},
        {"positions": [0, 3]},
        {"positions": [-1, 2]},
        {"token_ids": []},
        {"top_ids": [[3], [0, 2]]},
        {"top_ids": [[], [0, 2]], "top_logits": [[], [2.0, 1.9]]},
        {"top_logits": [[4.0, "x"], [2.0, 1.9]]},
    ],
)
def test_a_malformed_prompt_is_refused(change: dict[str, object]) -> None:
    content = msgspec.to_builtins(PROMPT) | change
    text = msgspec.json.encode({"precisions": {"fp32": {"bound": 1, "derivation": "", "prompts": [content]}}})
    with pytest.raises(msgspec.ValidationError):
        decode(text)


def test_equal_logits_are_within_any_bound() -> None:
    result = compare(PROMPT, _logits(), 0.01)
    assert result.deviation == 0 and result.decisive == 2 and result.within(0.01)


def test_a_deviation_is_the_largest_over_recorded_ids_alone() -> None:
    logits = _logits()
    logits[0, 1] += 0.25
    logits[1, 4] = -7.0
    assert compare(PROMPT, logits, 1.0).deviation == pytest.approx(0.25)


def test_only_a_margin_beyond_twice_the_bound_decides_the_arg_max() -> None:
    logits = _logits()
    logits[1, [0, 2]] = 1.9, 2.0
    close = compare(PROMPT, logits, 0.1)
    assert close.decisive == 1 and close.within(0.11)
    strict = compare(PROMPT, logits, 0.04)
    assert strict.flipped == [2] and not strict.within(1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_is_out_of_every_bound(value: float) -> None:
    logits = _logits()
    logits[0, 4] = value
    assert compare(PROMPT, logits, 1e9).deviation == math.inf
