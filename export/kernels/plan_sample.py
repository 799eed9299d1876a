"""The kernels that choose tokens. They depend on nothing in a graph: every bundle for a GPU packs the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from export.kernels.variant import Variant
from ops.triton import sample, sample_choose, sample_logprobs

_FLOATS, _INTS, _LONGS = "*fp32", "*i32", "*i64"
_SHAPE = {"columns": "i32", "parts": "i32"}
_ROW = {"settings": _FLOATS, "numbers": _LONGS, "raw_peaks": _FLOATS, "peaks": _FLOATS}
_FOUND = {"found": _INTS, "found_scores": _FLOATS, "found_ids": _INTS}


def sample_variants() -> Iterator[Variant]:
    """The variants, as the library's sampler names them (ops/src/cuda_sample.cc)."""
    part: dict[str, str] = {"logits": _FLOATS, "numbers": _LONGS, "masks": _INTS, "scores": _FLOATS}
    part |= {"peaks": _FLOATS, "firsts": _INTS, "sums": _FLOATS, **_SHAPE, "words": "i32"}
    for copied, rest in enumerate(("read", "copied")):
        yield _variant("sample_part", sample.sample_part_kernel, part, rest, {"COPY": copied})
    lists = {"scores": _FLOATS, "settings": _FLOATS, "pending": _INTS, "ids": _LONGS, "token_start": _INTS}
    lists |= {"token_ids": _INTS, "token_counts": _INTS, "bias_start": _INTS, "bias_ids": _INTS}
    lists |= {"bias_values": _FLOATS, "columns": "i32"}
    yield _variant("sample_lists", sample.sample_lists_kernel, lists)
    summed = {"scores": _FLOATS, **_ROW, "masses": _LONGS, "levels": _LONGS}
    yield _variant("sample_weigh", sample_choose.sample_weigh_kernel, summed | _SHAPE)
    yield _variant("sample_gather", sample_choose.sample_gather_kernel, summed | _FOUND | _SHAPE)
    choose = {
        "scores": _FLOATS,
        **_ROW,
        "firsts": _INTS,
        "masses": _LONGS,
        **_FOUND,
        "ids": _LONGS,
        "status": _INTS,
    }
    yield _variant("sample_choose", sample_choose.sample_choose_kernel, choose | _SHAPE)
    chosen = {"logits": _FLOATS, "numbers": _LONGS, "ids": _LONGS, "status": _INTS}
    tops = {"above": _INTS, "part_values": _FLOATS, "part_ids": _INTS}
    yield _variant("sample_rank", sample_logprobs.sample_rank_kernel, chosen | tops | _SHAPE)
    told = {"logprobs": _FLOATS, "ranks": _INTS, "top_ids": _INTS, "top_logprobs": _FLOATS}
    sums = {"raw_peaks": _FLOATS, "sums": _FLOATS}
    yield _variant("sample_logprobs", sample_logprobs.sample_logprobs_kernel, chosen | sums | tops | told | _SHAPE)
    feed = {"input_ids": _LONGS, "token_source": _INTS, "ids": _LONGS, "tokens": "i32"}
    yield _variant("sample_feed", sample.sample_feed_kernel, feed)


def _variant(
    kernel: str,
    function: object,
    types: Mapping[str, str],
    rest: str = "",
    constants: Mapping[str, int] | None = None,
) -> Variant:
    pointers = frozenset(name for name, kind in types.items() if kind.startswith("*"))
    key = f"{kernel}/{rest}" if rest else kernel
    return Variant(key, kernel, function, types, pointers, constants or {})
