"""Quantised weights in the layout of the GPU: whole blocks from chunks of any size, and the same codes."""

from __future__ import annotations

import numpy as np
import pytest

from export import quantise_cuda
from export.quantise import QuantisedWeight
from export.quantise_cuda import CudaQuantisedWeight
from ops.cuda_layout import unpack_rows
from ops.errors import CheckpointError
from ops.layout import QuantForm
from tests.export.sources import ArraySource


@pytest.mark.parametrize("rows", [5, 64, 200])
@pytest.mark.parametrize("form", [QuantForm(4, 128), QuantForm(4, 32, minima=True), QuantForm(8, 64)])
def test_chunks_are_whole_blocks_and_hold_the_codes(
    rows: int, form: QuantForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantise_cuda, "CHUNK_BYTES", 4 * 300 * 70)  # one block of rows, and a little
    source = ArraySource(np.random.default_rng(rows).normal(0, 1, (rows, 300)).astype(np.float32))
    weight = CudaQuantisedWeight(source, form)
    stored = np.concatenate(list(weight.chunks()))
    assert stored.shape == weight.shape
    found, expected = unpack_rows(form, stored, rows, 300), QuantisedWeight(source, form).codes(0, rows)
    assert (found.values == expected.values).all()
    assert (found.scales == expected.scales.astype(np.float16)).all()
    if expected.minima is not None and found.minima is not None:
        assert (found.minima == expected.minima.astype(np.float16)).all()


def test_scales_in_float32_are_refused() -> None:
    source = ArraySource(np.zeros((4, 64), np.float32))
    with pytest.raises(CheckpointError, match="float32"):
        CudaQuantisedWeight(source, QuantForm(8, 32, scales="float32"))
