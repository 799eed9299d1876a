"""The layout cpu-vnni: where single codes and scales lie, and the way back."""

from __future__ import annotations

import numpy as np
import pytest

from ops.layout import Codes, QuantForm, pack, unpack
from tests.ops.quant_case import FORMS, random_weights


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_packing_loses_nothing(form: QuantForm) -> None:
    packed = random_weights(form, 37, 250)
    assert packed.shape == form.shape(37, 250)
    codes = unpack(form, packed)
    assert np.array_equal(pack(form, codes), packed)
    assert not codes.values[37:].any() and not codes.scales[37:].any()
    assert len(np.unique(codes.values[:37])) == 1 << form.bits


def test_quads_of_a_row_lie_side_by_side() -> None:
    values = np.zeros((32, 1, 32), np.uint8)
    values[17, 0, 6] = 9
    packed = pack(QuantForm(8, 32), Codes(values, np.zeros((32, 1), np.float32), None))
    assert np.argwhere(packed).tolist() == [[1, 0, (1 * 16 + 1) * 4 + 2]]


def test_nibbles_hold_the_two_halves_of_a_block() -> None:
    values = np.zeros((16, 1, 64), np.uint8)
    values[2, 0, 32 + 5], values[2, 0, 32 + 16 + 5] = 3, 12
    packed = pack(QuantForm(4, 64), Codes(values, np.zeros((16, 1), np.float32), None))
    at = 256 + (1 * 16 + 2) * 4 + 1
    assert np.argwhere(packed).tolist() == [[0, 0, at]] and packed[0, 0, at] == 3 | 12 << 4


def test_scales_and_minima_follow_the_codes() -> None:
    form = QuantForm(4, 32, minima=True)
    scales, minima = np.arange(16, dtype=np.float32)[:, None], -np.arange(16, dtype=np.float32)[:, None]
    packed = pack(form, Codes(np.zeros((16, 1, 32), np.uint8), scales, minima))
    assert np.array_equal(packed[0, 0, 256:288].view("<f2"), scales[:, 0])
    assert np.array_equal(packed[0, 0, 288:].view("<f2"), minima[:, 0])


@pytest.mark.parametrize(("bits", "group"), [(4, 16), (5, 32), (8, 48), (8, 256)])
def test_forms_that_no_kernel_reads_are_refused(bits: int, group: int) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        QuantForm(bits, group)  # type: ignore[arg-type]
