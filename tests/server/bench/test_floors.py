"""Floors are the sums that they claim to be."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rtcore.manifest import (
    CacheGroup,
    CacheTensor,
    Dimensions,
    FileEntry,
    Manifest,
    Source,
    TextInfo,
    Variant,
)
from server.bench.ceilings import Ceilings
from server.bench.floors import Floors, weight_bytes

HIDDEN, VOCABULARY, LINEAR = 8, 100, 4000
CEILINGS = Ceilings(threads=1, read_bytes_s=1e6, fp32_ops_s=1e7, int8_ops_s=4e7)


def floors(precision: str = "fp32", window: int = 0) -> Floors:
    tensors = tuple(
        CacheTensor(f"{kind}_cache.0", f"{kind}_cache.0.out", 0, 0, kind, (2, 4), "float16") for kind in ("k", "v")
    )
    variant = Variant(
        precision=precision,
        target="cpu",
        step="graphs/x.onnx",
        weights=("weights/a.bin",),
        cache_groups=(CacheGroup(window),),
        cache_tensors=tensors,
        linear_bytes=20_000,
    )
    manifest = Manifest(
        name="m",
        family="llama",
        version="1",
        source=Source("random", "m"),
        dimensions=Dimensions(VOCABULARY, HIDDEN, 1, 4, 2, 4, 512, 5000, LINEAR),
        variants=(variant,),
        default_precision=precision,
        text=TextInfo(),
        files=(
            FileEntry("weights/a.bin", 30_000, ""),
            FileEntry("graphs/x.onnx", 1_000, ""),
            FileEntry("golden.json", 9_000, ""),
        ),
    )
    return Floors(manifest, variant, CEILINGS)


def test_decode_is_bound_by_bytes_at_one_sequence() -> None:
    cache = 10 * 2 * (2 * 4) * 2
    assert floors().decode_seconds(1, 10) == pytest.approx((20_000 + cache) / 1e6)


def test_decode_is_bound_by_operations_at_many() -> None:
    token = 2 * (LINEAR + HIDDEN * VOCABULARY)
    assert floors().decode_seconds(500, 1) == pytest.approx(500 * token / 1e7)


def test_prefill_counts_linears_head_and_attention() -> None:
    attention = 4 * 4 * 4 * sum(range(1, 101))
    operations = 2 * 100 * LINEAR + 2 * HIDDEN * VOCABULARY + attention
    assert floors().prefill_seconds(100) == pytest.approx(operations / 1e7)
    assert floors("int8").prefill_seconds(1000) < floors().prefill_seconds(1000)


def test_a_short_prefill_is_bound_by_bytes() -> None:
    assert floors().prefill_seconds(1) == pytest.approx(20_000 / 1e6)


def test_a_window_bounds_cache_and_attention() -> None:
    assert floors(window=16).cache_bytes(1000) == floors().cache_bytes(16)
    assert floors(window=16).prefill_seconds(400) < floors().prefill_seconds(400)


def test_more_tokens_read_more_experts() -> None:
    """Of 12,000 bytes of experts one token reads a quarter: two of eight."""
    plain = floors()
    sizes = replace(plain.manifest.dimensions, experts=8, experts_per_token=2)
    manifest = replace(plain.manifest, dimensions=sizes)
    variant = replace(plain.variant, linear_bytes=11_000, expert_bytes=3_000)
    found = {tokens: weight_bytes(manifest, variant, tokens) for tokens in (1, 2, 400)}
    assert found[1] == pytest.approx(11_000)
    # The second token goes to experts of which the first went to a quarter.
    assert found[2] == pytest.approx(8_000 + 3_000 * 1.75)
    assert found[400] == pytest.approx(20_000)
    mixture = Floors(manifest, variant, CEILINGS)
    caches = 2 * mixture.cache_bytes(10)
    assert mixture.decode_seconds(2, 10) == pytest.approx((found[2] + caches) / 1e6)
    assert mixture.memory_bytes(2, 10) == round(found[2]) + caches
    assert mixture.prefill_seconds(2) == pytest.approx(found[2] / 1e6)


def test_memory_and_load() -> None:
    assert floors().memory_bytes(2, 10) == 20_000 + 2 * floors().cache_bytes(10)
    assert floors().load_seconds() == pytest.approx(31_000 / 1e6)
