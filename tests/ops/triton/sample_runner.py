"""Sample on Triton: the launches of the library's sampler (ops/src/cuda_sample.cc), for one set of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ops.reference.sample import Sampled
from ops.triton.sample import sample_lists_kernel, sample_part_kernel
from ops.triton.sample_choose import sample_choose_kernel, sample_gather_kernel, sample_weigh_kernel
from ops.triton.sample_logprobs import sample_logprobs_kernel, sample_rank_kernel
from tests.ops.sample_case import Row, inputs_of
from tests.ops.triton.tools import poisoned, tensor

TOPS = 20
LEVELS = 16


def by_triton(
    logits: Any,
    rows: list[Row],
    device: str,
    *,
    part: int = 256,
    room: int = 128,
    tile: int = 128,
    pending: dict[int, int] | None = None,
) -> Sampled:
    """Sample's outputs. pending: the newest token of some rows, which their lists do not count yet."""
    given = {
        name: tensor(array.view(np.int32) if array.dtype == np.uint32 else array, device)
        for name, array in inputs_of(logits, rows).items()
        if name != "logits"
    }
    count, columns = len(rows), logits.shape[1]
    parts = -(-columns // part)
    width = 1 << (parts - 1).bit_length()
    raw = tensor(logits, device)

    def floats(*shape: int) -> torch.Tensor:
        return poisoned(shape, device, "float32")

    def wholes(*shape: int, dtype: Any = np.int32) -> torch.Tensor:
        return tensor(np.full(shape, -77, dtype), device)

    def parted() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return floats(count, parts), wholes(count, parts), floats(count, parts)

    numbers, settings = given["numbers"], given["settings"]
    listed = len(given["bias_ids"]) + len(given["token_ids"]) > 0 or pending is not None
    copied = listed or len(given["masks"]) > 0
    scores = floats(count, columns) if copied else raw
    words = -(-columns // 32)
    raw_parts = peak_parts = parted()
    grid = (count, parts)
    sample_part_kernel[grid](
        raw, numbers, given["masks"], scores, *raw_parts, columns, parts, words, COPY=int(copied), PART=part
    )
    ids, status = wholes(count, dtype=np.int64), wholes(count)
    newest = np.full(count, -1, np.int32)
    if pending:
        for row, token in pending.items():
            newest[row] = row
            ids[row] = token
    if listed:
        sample_lists_kernel[(count,)](
            scores, settings, tensor(newest, device), ids, given["token_start"], given["token_ids"],
            given["token_counts"], given["bias_start"], given["bias_ids"], given["bias_values"], columns, BLOCK=64,
        )  # fmt: skip
    if copied:
        peak_parts = parted()
        sample_part_kernel[grid](
            scores, numbers, given["masks"], scores, *peak_parts, columns, parts, words, COPY=0, PART=part
        )
    masses, levels = wholes(count, parts, dtype=np.int64), wholes(count, parts, LEVELS, dtype=np.int64)
    found, found_scores, found_ids = wholes(count), floats(count, room), wholes(count, room)
    shared = (scores, settings, numbers, raw_parts[0], peak_parts[0])
    sample_weigh_kernel[grid](*shared, masses, levels, columns, parts, PART=part, PARTS=width)
    sample_gather_kernel[grid](
        *shared, masses, levels, found, found_scores, found_ids, columns, parts, PART=part, PARTS=width, ROOM=room
    )
    sample_choose_kernel[(count,)](
        *shared, peak_parts[1], masses, found, found_scores, found_ids, ids, status, columns, parts,
        PARTS=width, PART=part, ROOM=room, TILE=tile,
    )  # fmt: skip
    above, part_values, part_ids = wholes(count, parts), floats(count, parts, TOPS), wholes(count, parts, TOPS)
    logprobs, ranks, top_ids, top_logprobs = floats(count), wholes(count), wholes(count, TOPS), floats(count, TOPS)
    sample_rank_kernel[grid](
        raw, numbers, ids, status, above, part_values, part_ids, columns, parts, PART=part, TOPS=TOPS
    )
    sample_logprobs_kernel[(count,)](
        raw, numbers, ids, status, raw_parts[0], raw_parts[2], above, part_values, part_ids,
        logprobs, ranks, top_ids, top_logprobs, columns, parts, PARTS=width, TOPS=TOPS, BLOCK_T=32,
    )  # fmt: skip
    most = max(0, max(row.logprobs for row in rows))
    answers = (ids, status, logprobs, ranks, top_ids[:, :most], top_logprobs[:, :most])
    return Sampled(*(answer.cpu().numpy() for answer in answers))
