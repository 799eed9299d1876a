"""Products with quantised weights, their dequantisation and the embedding, in every form of the layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ops.cuda_layout import pack_rows, shape_of, steps_of, unpack_rows
from ops.layout import Codes, QuantForm
from ops.reference.gated_activation import gated_activation
from ops.triton.gather import quant_gather_kernel
from ops.triton.quant_matmul import dequantise_kernel, quant_tile_kernel
from tests.ops.triton.conftest import INTERPRETED
from tests.ops.triton.tools import check, norms_around, parts_of, poisoned, rounded, tensor

FORMS = [
    QuantForm(4, 32),
    QuantForm(4, 128),
    QuantForm(4, 32, minima=True),
    QuantForm(8, 16),
    QuantForm(8, 64),
    QuantForm(8, 32, minima=True),
]
DTYPE = "float16"


def name_of(form: QuantForm) -> str:
    return f"int{form.bits}.{form.group}{'.minima' if form.minima else ''}"


#: Words ahead in registers are for wide groups without minima.
WAYS = [
    *((form, 0) for form in FORMS),
    *((form, depth) for form in FORMS if form.group >= 32 for depth in (1, 2)),
    (QuantForm(4, 64), 1),
    (QuantForm(8, 128), 2),
]


def random_codes(form: QuantForm, rows: int, columns: int) -> Codes:
    random = np.random.default_rng(form.group + rows)
    groups = -(-columns // form.group)
    values = random.integers(0, 1 << form.bits, (rows, groups, form.group)).astype(np.uint8)
    # Padding columns hold the code that stands for zero, or 0 with minima.
    values.reshape(rows, -1)[:, columns:] = 0 if form.minima else 1 << (form.bits - 1)
    scales = (random.uniform(0.5, 1.5, (rows, groups)) * 2.0**-form.bits).astype(np.float16).astype(np.float32)
    minima = -scales * 2.0 ** (form.bits - 1)
    return Codes(values, scales, minima.astype(np.float16).astype(np.float32) if form.minima else None)


def arguments(packed: np.ndarray, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The packed rows as words and as float16, the same memory."""
    words = tensor(packed.view(np.int32), device)
    return words, words.view(torch.float16)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
@pytest.mark.parametrize(("rows", "columns"), [(5, 90), (130, 300)])
def test_layout_gives_back_what_it_was_given(form: QuantForm, rows: int, columns: int) -> None:
    codes = random_codes(form, rows, columns)
    packed = pack_rows(form, codes)
    assert packed.shape == shape_of(form, rows, columns)
    found = unpack_rows(form, packed, rows, columns)
    assert (found.values == codes.values).all()
    assert (found.scales == codes.scales).all()
    assert (found.minima is None) == (codes.minima is None)


def reference(
    form: QuantForm, codes: Codes, x: np.ndarray, bias: np.ndarray, gated: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The result and what its error is measured by."""
    columns = x.shape[1]
    weights = codes.dequantised(form.bits)[:, :columns].astype(np.float64)
    product = rounded(x, DTYPE) @ weights.T + rounded(bias, DTYPE)
    # Products are rounded to float16 before they are added: the reach is what they add up to, and the gate's slope.
    reach = np.abs(rounded(x, DTYPE)) @ np.abs(weights).T
    if form.minima:
        reach = reach + np.abs(rounded(x, DTYPE)).sum(axis=1, keepdims=True)
    if not gated:
        return product, reach
    width = product.shape[1] // 2
    gate, up = reach[:, :width], reach[:, width:]
    reach = gate * (1 + np.abs(product[:, width:])) + up * (1 + np.abs(product[:, :width]))
    return gated_activation(product), reach


@pytest.mark.parametrize(("form", "depth"), WAYS, ids=[f"{name_of(form)}-ahead{depth}" for form, depth in WAYS])
@pytest.mark.parametrize(
    ("rows", "width", "columns", "parts"), [(1, 24, 128, 1), (1, 21, 700, 3), (3, 130, 200, 1), (17, 64, 600, 2)]
)
@pytest.mark.parametrize("gated", [False, True])
def test_quant_matmul(
    device: str, form: QuantForm, depth: int, rows: int, width: int, columns: int, parts: int, gated: bool
) -> None:
    block_m = 8 if depth else 16
    if gated:
        width = -(-width // 64) * 64
    height = width * (2 if gated else 1)
    codes = random_codes(form, height, columns)
    packed = pack_rows(form, codes)
    random = np.random.default_rng(columns)
    x, bias = random.normal(0, 1, (rows, columns)), random.normal(0, 1, height)
    y = poisoned((rows, width), device, DTYPE)
    words, scales = arguments(packed, device)
    block_n = 128 if width > 128 else 64
    grid = (-(-width // block_n), parts, -(-rows // block_m))
    partial, counters = parts_of(grid, block_n * block_m * (2 if gated else 1), device)
    quant_tile_kernel[grid](
        tensor(x, device, DTYPE), words, scales, tensor(bias, device, DTYPE), y, partial, counters,
        *norms_around(device, DTYPE), rows, width, columns, packed.shape[1],
        BITS=form.bits, GROUP=form.group, MINIMA=int(form.minima), PACKED=int(not INTERPRETED), HAS_BIAS=1,
        ACTIVATION=int(gated), NORM=0, DEPENDENT=0, BLOCK_M=block_m, BLOCK_N=block_n, DEPTH=depth, SPLIT=0, WHOLE=0,
        STAGES=2,
    )  # fmt: skip
    assert not counters.any()
    expected, reach = reference(form, codes, x, bias, gated)
    check(y, expected, reach, DTYPE)


#: Width, columns, rows of W a program, steps ahead, warps that share the columns, gated. Interpreters take seconds.
SINGLE = [
    (24, 90, 16, 1, 4, False),
    (64, 320, 32, 2, 4, True),
    (60, 301, 64, 1, 2, False),
    (40, 700, 16, 2, 2, True),
]


@pytest.mark.parametrize(
    ("form", "width", "columns", "block_n", "depth", "split", "gated"),
    [(form, *SINGLE[at % len(SINGLE)]) for at, form in enumerate([*FORMS, QuantForm(4, 64), QuantForm(8, 128)])],
)
def test_quant_matmul_of_one_row(
    device: str,
    form: QuantForm,
    width: int,
    columns: int,
    block_n: int,
    depth: int,
    split: int,
    gated: bool,
) -> None:
    if gated:
        width = -(-width // 64) * 64
    height = width * (2 if gated else 1)
    codes = random_codes(form, height, columns)
    packed = pack_rows(form, codes)
    random = np.random.default_rng(columns)
    x, bias = random.normal(0, 1, (1, columns)), random.normal(0, 1, height)
    # What lies behind the row is not read as a part of it.
    given = tensor(np.append(x[0], np.full(2, np.nan)), device, DTYPE)
    y = poisoned((1, width), device, DTYPE)
    words, scales = arguments(packed, device)
    grid = (-(-width // block_n), 1, 1)
    partial, counters = parts_of(grid, 0, device)
    quant_tile_kernel[grid](
        given, words, scales, tensor(bias, device, DTYPE), y, partial, counters,
        *norms_around(device, DTYPE), 1, width, columns, packed.shape[1],
        BITS=form.bits, GROUP=form.group, MINIMA=int(form.minima), PACKED=int(not INTERPRETED), HAS_BIAS=1,
        ACTIVATION=int(gated), NORM=0, DEPENDENT=0, BLOCK_M=1, BLOCK_N=block_n, DEPTH=depth, SPLIT=split,
        WHOLE=int(columns % 32 == 0), STAGES=1, num_warps=block_n // 16 * split * (2 if gated else 1),
    )  # fmt: skip
    expected, reach = reference(form, codes, x, bias, gated)
    check(y, expected, reach, DTYPE)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_dequantise_and_gather(device: str, form: QuantForm) -> None:
    rows, columns = 70, 300
    codes = random_codes(form, rows, columns)
    packed = pack_rows(form, codes)
    words, scales = arguments(packed, device)
    weights = codes.dequantised(form.bits)[:, :columns].astype(np.float64)
    flags = {"BITS": form.bits, "GROUP": form.group, "MINIMA": int(form.minima), "DEPENDENT": 0}
    steps = steps_of(form.bits, columns)
    out = poisoned((rows, columns), device, DTYPE)
    sizes = (columns, packed.shape[1])
    dequantise_kernel[(len(packed), steps)](words, scales, out, rows, *sizes, **flags, PACKED=int(not INTERPRETED))
    check(out, weights, 2.0, DTYPE)
    ids = np.array([3, 69, 0, 3, -1, 70], np.int64)
    y = poisoned((len(ids), columns), device, DTYPE)
    quant_gather_kernel[(len(ids), steps)](words, scales, tensor(ids, device), y, rows, *sizes, **flags)
    expected = np.where((ids >= 0)[:, None] & (ids < rows)[:, None], weights[np.clip(ids, 0, rows - 1)], 0.0)
    check(y, expected, 1.0, DTYPE)
