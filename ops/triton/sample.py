"""Greedy choice: the index of each row's largest logit, in two steps so that many programs read a long row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def argmax_part_kernel(logits, values, indices, columns, parts, PART: tl.constexpr, BLOCK: tl.constexpr):
    """The largest of PART logits and its index (the first of equals); grid (rows, parts)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    place = tl.zeros([BLOCK], tl.int32)
    for start in range(part * PART, part * PART + PART, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * columns + at, mask=at < columns, other=float("-inf"))
        # What is no number counts as infinite, so that the row's largest shows it.
        value = tl.where(value != value, float("inf"), value)
        better = value > best
        best = tl.where(better, value, best)
        place = tl.where(better, at, place)
    top = tl.max(best, axis=0)
    first = tl.min(tl.where(best == top, place, 2147483647), axis=0)
    tl.store(values + row * parts + part, top)
    tl.store(indices + row * parts + part, first)


@triton.jit
def argmax_kernel(values, indices, ids, tops, parts, BLOCK: tl.constexpr):
    """The best of a row's parts, parts <= BLOCK; ids int64 [rows], tops float32 [rows]; grid (rows)."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(values + row * parts + at, mask=at < parts, other=float("-inf"))
    place = tl.load(indices + row * parts + at, mask=at < parts, other=2147483647)
    top = tl.max(value, axis=0)
    first = tl.min(tl.where(value == top, place, 2147483647), axis=0)
    tl.store(tops + row, top)
    tl.store(ids + row, first.to(tl.int64))
