"""SamplingParams: what is out of range is refused by the name of its field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ops.errors import InvalidRequest
from rtcore.decoding.params import MAX_SEQUENCES, MAX_STOP_BYTES, MAX_STOP_STRINGS, SamplingParams


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
