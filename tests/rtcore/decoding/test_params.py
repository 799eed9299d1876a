"""SamplingParams: what is out of range is refused by the name of its field."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from ops.errors import InvalidRequest
from rtcore.decoding.params import (
    MAX_BAD_WORDS,
    MAX_BIASED_TOKENS,
    MAX_LOGPROBS,
    MAX_SEQUENCES,
    MAX_STOP_BYTES,
    MAX_STOP_STRINGS,
    Hook,
    SamplingParams,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", MAX_SEQUENCES + 1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -2),
        ("top_k", 2**31),
        ("top_p", 0),
        ("top_p", math.nan),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("max_tokens", 0),
        ("stop", ""),
        ("stop", "é" * (MAX_STOP_BYTES // 2 + 1)),
        ("stop", "\ud800"),
        ("stop", ["x"] * (MAX_STOP_STRINGS + 1)),
        ("stop_token_ids", (3, -1)),
        ("best_of", 0),
        ("best_of", MAX_SEQUENCES + 1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("frequency_penalty", math.nan),
        ("logit_bias", {3: 101.0}),
        ("logit_bias", {-3: 1.0}),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", dict.fromkeys(range(MAX_BIASED_TOKENS + 1), 1.0)),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", (3, -1)),
        ("banned_token_ids", (-1,)),
        ("bad_words", [""]),
        ("bad_words", ["\ud800"]),
        ("bad_words", ["x"] * (MAX_BAD_WORDS + 1)),
        ("bad_word_ids", [[]]),
        ("bad_word_ids", [[1, -2]]),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", -1),
        ("logprobs", MAX_LOGPROBS + 1),
        ("prompt_logprobs", -1),
        ("logits_processors", ["x"] * 9),
        ("stop_rules", ["x"] * 9),
    ],
)
def test_a_value_out_of_range_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert caught.value.what.isprintable()


def test_lists_and_single_texts_become_tuples() -> None:
    assert SamplingParams(stop="x").stop == SamplingParams(stop=["x"]).stop == ("x",)  # type: ignore[arg-type]
    assert SamplingParams(stop_token_ids=[1, 2]).stop_token_ids == (1, 2)  # type: ignore[arg-type]
    assert SamplingParams(stop="é" * (MAX_STOP_BYTES // 2)).max_tokens == 16  # type: ignore[arg-type]


def test_all_fields_cross_a_process_border() -> None:
    params = SamplingParams(
        n=2,
        best_of=3,
        logit_bias={3: -100.0, 4: 0.5},
        allowed_token_ids=(1, 2),
        bad_words=["x"],  # type: ignore[arg-type]
        bad_word_ids=[[1, 2]],  # type: ignore[arg-type]
        logits_processors=["a", Hook("b", {"c": [1, "d"]})],  # type: ignore[arg-type]
        stop_rules="e",  # type: ignore[arg-type]
    )
    assert params.logits_processors == (Hook("a"), Hook("b", {"c": [1, "d"]})) and params.stop_rules == (Hook("e"),)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert (params.sequences, SamplingParams(n=4).sequences) == (3, 4)


def test_the_field_with_the_largest_id_is_named() -> None:
    assert SamplingParams().largest_token_id()[1] == -1
    assert SamplingParams(bad_word_ids=((1, 7), (3,)), stop_token_ids=(5,)).largest_token_id() == (
        "bad_word_ids",
        7,
    )
    assert SamplingParams(logit_bias={9: 1.0}, allowed_token_ids=(2,)).largest_token_id() == ("logit_bias", 9)
