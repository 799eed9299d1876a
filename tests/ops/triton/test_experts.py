"""Experts: rows are routed, put in order and multiplied; blocks that no row fills leave no trace."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ops.cuda_layout import pack_rows
from ops.layout import QuantForm
from ops.reference.experts import route
from ops.reference.gated_activation import gated_activation
from ops.triton.experts import experts_sum_kernel, experts_tile_kernel
from ops.triton.experts_quant import experts_quant_tile_kernel
from ops.triton.experts_route import experts_group_kernel, experts_route_kernel
from tests.ops.triton.conftest import INTERPRETED
from tests.ops.triton.test_quant import name_of, random_codes
from tests.ops.triton.tools import check, poisoned, rounded, tensor, wide

EXPERTS, BLOCK_E = 6, 8


def routed(
    logits: np.ndarray, top_k: int, device: str, normalise: bool = False, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, experts = logits.shape
    chosen = torch.full((rows, top_k), -7, dtype=torch.int32, device=device)
    shares = poisoned((rows, top_k), device, "float32")
    experts_route_kernel[(rows,)](
        tensor(logits, device), chosen, shares, experts, top_k, int(normalise), scale, DEPENDENT=0, BLOCK_E=BLOCK_E
    )
    return chosen, shares


def grouped(chosen: torch.Tensor, block: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The order of pairs and the experts' ends, with room as the library gives it."""
    pairs = chosen.numel()
    blocks = min(pairs, EXPERTS) + pairs // block
    order = torch.full((blocks, block), -9, dtype=torch.int32, device=device)
    ends = torch.full((EXPERTS,), -9, dtype=torch.int32, device=device)
    experts_group_kernel[(EXPERTS,)](
        chosen, order, ends, pairs, EXPERTS, block, DEPENDENT=0, BLOCK_E=BLOCK_E, CHUNK=16
    )
    return order, ends


def logits_of(rows: int) -> np.ndarray:
    """The first row prefers all experts alike, the last expert is nobody's."""
    logits = np.random.default_rng(rows).normal(0, 1, (rows, EXPERTS)).astype(np.float32)
    logits[:1] = 0.5
    logits[1:, -1] = -20.0
    return logits


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("top_k", [1, 2, 6])
def test_route(device: str, top_k: int, normalise: bool) -> None:
    logits = logits_of(9)
    chosen, shares = routed(logits, top_k, device, normalise, 1.5)
    expected, weights = route(logits, top_k, normalise=normalise, scale=1.5)
    assert (chosen.cpu().numpy() == expected).all()
    assert np.abs(wide(shares) - weights).max() < 1e-6


def test_route_of_what_is_no_number(device: str) -> None:
    """Rows that a step spoilt choose experts that there are."""
    logits = np.array([[np.nan] * 6, [-np.inf] * 6, [1, np.nan, 3, np.inf, 2, 0]], np.float32)
    chosen, _ = routed(logits, 3, device)
    assert chosen.cpu().tolist() == [[0, 1, 2], [0, 1, 2], [3, 2, 4]]


@pytest.mark.parametrize(("rows", "top_k", "block"), [(1, 2, 16), (40, 2, 16), (70, 3, 8), (3, 6, 16)])
def test_group(device: str, rows: int, top_k: int, block: int) -> None:
    chosen, _ = routed(logits_of(rows), top_k, device)
    order, ends = (found.cpu().numpy() for found in grouped(chosen, block, device))
    flat = chosen.cpu().numpy().reshape(-1)
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        pairs = np.flatnonzero(flat == expert)
        assert end - begin == -(-len(pairs) // block)
        found = order[begin:end].reshape(-1)
        assert found[: len(pairs)].tolist() == pairs.tolist() and (found[len(pairs) :] == -1).all()
        begin = end
    assert begin <= len(order) and (order[begin:] == -9).all()


@pytest.mark.parametrize(("rows", "top_k"), [(1, 2), (40, 2), (5, 6)])
def test_products_and_sum(device: str, dtype: str, rows: int, top_k: int) -> None:
    hidden, inner, block = 48, 40, 16
    random = np.random.default_rng(rows)
    x = random.normal(0, 1, (rows, hidden))
    gate_up = random.normal(0, hidden**-0.5, (EXPERTS, 2 * inner, hidden))
    down = random.normal(0, inner**-0.5, (EXPERTS, hidden, inner))
    chosen, shares = routed(logits_of(rows), top_k, device)
    order, ends = grouped(chosen, block, device)
    pairs = rows * top_k
    between, parts = poisoned((pairs, inner), device, dtype), poisoned((pairs, hidden), device, "float32")
    y = poisoned((rows, hidden), device, dtype)
    tile = {"DEPENDENT": 0, "BLOCK_E": BLOCK_E, "BLOCK_M": block, "BLOCK_N": 32, "BLOCK_K": 32, "STAGES": 2}
    experts_tile_kernel[(2, 3)](
        tensor(x, device, dtype), tensor(gate_up, device, dtype), between, order, ends, EXPERTS, top_k, inner,
        hidden, ACTIVATION=1, **tile,
    )  # fmt: skip
    experts_tile_kernel[(2, 3)](
        between, tensor(down, device, dtype), parts, order, ends, EXPERTS, 1, hidden, inner, ACTIVATION=0, **tile
    )
    experts_sum_kernel[(rows, 2)](parts, shares, y, top_k, hidden, DEPENDENT=0, BLOCK=32)
    given, flat = rounded(x, dtype), chosen.cpu().numpy().reshape(-1)
    row = np.arange(pairs) // top_k
    expected = np.stack(
        [gated_activation(given[r] @ rounded(gate_up[e], dtype).T) for r, e in zip(row, flat, strict=True)]
    )
    check(between, expected, 1e-2 * np.abs(expected) + 1e-3, dtype)
    expected = np.stack([pair @ rounded(down[e], dtype).T for pair, e in zip(wide(between), flat, strict=True)])
    check(parts, expected, 1e-3, "float16")
    total = (wide(parts) * wide(shares).reshape(-1, 1)).reshape(rows, top_k, hidden)
    check(y, total.sum(axis=1), 1e-3 * np.abs(total).sum(axis=1), dtype)


@pytest.mark.parametrize("form", [QuantForm(4, 32), QuantForm(4, 128), QuantForm(8, 32, minima=True)], ids=name_of)
@pytest.mark.parametrize("gated", [False, True])
def test_products_of_quantised_weights(device: str, form: QuantForm, gated: bool) -> None:
    rows, top_k, width, columns, block = 20, 2, 128, 300, 16
    height = width * (2 if gated else 1)
    codes = random_codes(form, EXPERTS * height, columns)
    packed = pack_rows(form, codes)
    chosen, _ = routed(logits_of(rows), top_k, device)
    order, ends = grouped(chosen, block, device)
    share = top_k if gated else 1
    x = np.random.default_rng(3).normal(0, 1, (rows * top_k // share, columns))
    y = poisoned((rows * top_k, width), device, "float16")
    words = tensor(packed.view(np.int32), device)
    experts_quant_tile_kernel[(2, 3)](
        tensor(x, device, "float16"), words, words.view(torch.float16), y, order, ends, EXPERTS, share, width,
        columns, packed.shape[1], BITS=form.bits, GROUP=form.group, MINIMA=int(form.minima),
        PACKED=int(not INTERPRETED), ACTIVATION=int(gated), DEPENDENT=0, BLOCK_E=BLOCK_E, BLOCK_M=block,
        BLOCK_N=64, STAGES=2,
    )  # fmt: skip
    weights = codes.dequantised(form.bits)[:, :columns].astype(np.float64).reshape(EXPERTS, height, columns)
    given = rounded(x, "float16")
    for pair, expert in enumerate(chosen.cpu().numpy().reshape(-1).tolist()):
        row = given[pair // share]
        product, reach = weights[expert] @ row, np.abs(weights[expert]) @ np.abs(row)
        if form.minima:
            reach = reach + np.abs(row).sum()
        if gated:
            expected = gated_activation(product[None])[0]
            reach = reach[:width] * (1 + np.abs(product[width:])) + reach[width:] * (1 + np.abs(product[:width]))
        else:
            expected = product
        check(y[pair], expected, reach, "float16")
