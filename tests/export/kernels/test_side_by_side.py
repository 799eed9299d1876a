"""Kernels compiled in processes are those compiled here, in their order."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

pytest.importorskip("triton")
pytest.importorskip("onnx_ir")

from export.kernels import side_by_side
from export.kernels.architecture import architecture
from export.kernels.compile import compile_variant
from export.kernels.plan_sample import sample_variants
from export.kernels.side_by_side import compile_all
from ops.errors import KernelError

pytestmark = pytest.mark.export
SM_90 = architecture("90")
#: Those that take least to compile.
SMALL = [
    variant for variant in sample_variants() if variant.kernel in ("sample_feed", "sample_part", "sample_lists")
]


def test_a_variant_crosses_to_another_process() -> None:
    for variant in sample_variants():
        found = pickle.loads(pickle.dumps(variant))
        assert found == variant and found.function is variant.function


@pytest.mark.parametrize("cores", [1, 2])
def test_binaries_come_in_order(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(side_by_side, "available_cores", lambda: cores)
    variants = [SMALL[number % len(SMALL)] for number in range(12)]
    found = list(compile_all([(variant, SM_90) for variant in variants]))
    assert [one[0].variant for one in found] == variants
    assert found[0][0].binary == compile_variant(variants[0], SM_90)[0].binary


def test_what_fails_in_a_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "available_cores", lambda: 2)
    broken = replace(SMALL[0], key="broken", types={**SMALL[0].types, "logits": "*nonsense"})
    with pytest.raises(KernelError, match="broken"):
        list(compile_all([(variant, SM_90) for variant in [*SMALL * 4, broken]]))
