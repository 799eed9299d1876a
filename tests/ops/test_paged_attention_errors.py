"""What PagedAttention refuses, and that it then writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests.ops.attention_case import Array, Case, Shape, make_case
from tests.ops.runner import REFUSED, run

SHAPE = Shape(((20, 1), (0, 5)), padding_tokens=1, padding_sequences=1)


def put(name: str, index: int | tuple[int, ...], value: int) -> Callable[[Case], None]:
    """A fault: one number of an input is wrong."""

    def fault(case: Case) -> None:
        case.arrays[name][index] = value

    return fault


def reshape(name: str, change: Callable[[Array], Array]) -> Callable[[Case], None]:
    """A fault: an input has another shape."""

    def fault(case: Case) -> None:
        case.arrays[name] = np.ascontiguousarray(change(case.arrays[name]))

    return fault


FAULTS = {
    "block past the cache": (
        put("block_tables", (0, 1), 6),
        r"block_tables\[0, 1\] is block 6, but the cache",
    ),
    "negative block": (put("block_tables", (1, 0), -1), r"block_tables\[1, 0\] is block -1"),
    "slot past the cache": (put("slot_mapping", 2, 96), r"slot_mapping\[2\] is 96, but the cache has 96 slots"),
    "negative slot": (put("slot_mapping", 0, -2), r"slot_mapping\[0\] is -2"),
    "position past the table": (put("positions", 3, 21), r"positions\[3\] is 21, but rope_table has 21 rows"),
    "negative position": (put("positions", 3, -1), r"positions\[3\] is -1"),
    "length past the block table": (put("seq_lens", 0, 49), r"seq_lens\[0\] is 49"),
    "length below the new tokens": (put("seq_lens", 1, 4), r"seq_lens\[1\] is 4"),
    "negative length": (put("seq_lens", 2, -1), r"seq_lens\[2\] is -1"),
    "starts that fall": (put("query_start", 1, 7), r"query_start\[2\] is 6 after 7"),
    "starts past the rows": (put("query_start", 3, 8), r"query_start\[3\] is 8"),
    "starts not at zero": (put("query_start", 0, 1), r"query_start\[0\] is 1"),
    "plan with other tokens": (put("plan", 4, 5), r"plan\[4\] is 5, but query_start ends at 6"),
    "q too wide": (reshape("q", lambda q: np.concatenate([q, q], axis=1)), r"input q has shape \[7, 192\]"),
    "k too short": (reshape("k", lambda k: k[:5]), r"input k has shape \[5, 32\]"),
    "v too narrow": (reshape("v", lambda v: v[:, :16]), r"input v has shape \[7, 16\]"),
    "key heads differ": (reshape("k_cache", lambda k: k[:, :, :1]), r"input k_cache has shape \[6, 16, 1, 16\]"),
    "caches differ": (reshape("v_cache", lambda v: v[:5]), r"input v_cache has shape \[5, 16, 2, 16\]"),
    "too few slots": (reshape("slot_mapping", lambda s: s[:6]), r"input slot_mapping has shape \[6\]"),
    "too few lengths": (reshape("seq_lens", lambda s: s[:2]), r"input seq_lens has shape \[2\]"),
    "too few starts": (reshape("query_start", lambda s: s[:3]), r"input query_start has shape \[3\]"),
    "too few positions": (reshape("positions", lambda p: p[:6]), r"input positions has shape \[6\]"),
    "short plan": (reshape("plan", lambda p: p[:5]), r"input plan has shape \[5\]"),
    "flat block tables": (reshape("block_tables", lambda b: b.reshape(-1)), r"input block_tables has shape \[9\]"),
    "narrow rope table": (reshape("rope_table", lambda r: r[:, :8]), r"input rope_table has shape \[21, 8\]"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_input_is_named_and_nothing_is_written(name: str) -> None:
    fault, message = FAULTS[name]
    case = make_case(SHAPE)
    fault(case)
    before = case.copy()
    with pytest.raises(REFUSED, match="PagedAttention: .*" + message):
        case.run()
    for cache in ("k_cache", "v_cache"):
        np.testing.assert_array_equal(case.arrays[cache], before.arrays[cache])


def test_separate_cache_buffers_are_refused() -> None:
    with pytest.raises(REFUSED, match="bind the same OrtValue to the graph's cache input and cache output"):
        make_case(SHAPE).run(shared=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": None}, "inputs k and v go together"),
        ({"rope_table": None}, "input rope_table is missing"),
        ({"q_norm": np.ones(8, np.float32)}, r"input q_norm has shape \[8\]"),
        ({"k_norm": np.ones((1, 16), np.float32)}, r"input k_norm has shape \[1, 16\]"),
        ({"sinks": np.ones(2, np.float32)}, r"input sinks has shape \[2\]"),
        ({"k_scale": np.ones((6, 16, 2), np.float32)}, "inputs k_scale and v_scale are for a quantised cache"),
    ],
)
def test_optional_inputs_are_checked(change: dict[str, Array | None], message: str) -> None:
    case = make_case(SHAPE)
    case.arrays = {name: array for name, array in (case.arrays | change).items() if array is not None}
    with pytest.raises(REFUSED, match="PagedAttention: " + message):
        case.run()


def test_a_table_without_rotary_dims_is_refused() -> None:
    case = make_case(SHAPE)
    with pytest.raises(REFUSED, match="input rope_table is given, but attribute rotary_dims is 0"):
        replace(case, shape=replace(SHAPE, rotary_dims=0)).run()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"heads": 0}, "attribute heads is 0"),
        ({"heads": 5}, "attribute kv_heads is 2 and does not divide the 5 heads"),
        ({"window": -1}, "attribute window is -1"),
        ({"window": 1.5}, "attribute window"),
        ({"softcap": -1.0}, "attribute softcap"),
        ({"rotary_dims": 3}, "attribute rotary_dims is 3"),
        ({"rotary_dims": 32}, "attribute rotary_dims is 32, but a head has 16 dims"),
        ({"interleaved": 2}, "attribute interleaved is 2"),
        ({"norm_epsilon": -1.0}, "attribute norm_epsilon"),
        ({"scale": None}, "attribute scale"),
    ],
)
def test_attributes_are_checked(attributes: dict[str, int | float | None], message: str) -> None:
    given: dict[str, int | float | None] = {
        "heads": 6,
        "kv_heads": 2,
        "scale": 0.25,
        "rotary_dims": 16,
        **attributes,
    }
    with pytest.raises(REFUSED, match="PagedAttention: " + message):
        run(
            "PagedAttention", make_case(SHAPE).arrays, {name: one for name, one in given.items() if one is not None}
        )
