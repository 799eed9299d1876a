"""What a cache that holds everything would find in a trace: no cache can find more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from server.bench.simulation.machine import BLOCK_SIZE
from server.bench.simulation.traces import TraceRequest, next_turn


@dataclass(frozen=True, slots=True)
class InfiniteCache:
    """hit_rate: share of the prompts' tokens that were computed before. blocks: all that are ever written."""

    hit_rate: float
    blocks: int


def infinite_cache(requests: Iterable[TraceRequest]) -> InfiniteCache:
    """Go through conversations one after the other, each request answered before the next one comes.

    requests: the first of each conversation. Blocks are told apart by chained 64-bit hashes of their tokens, so
    that a trace of millions of blocks needs a set of numbers and no cache. A prompt's last token is never found,
    since its logits are needed, and an answer's last one is never computed.
    """
    seen: set[int] = set()
    query = hits = beginnings = 0
    for first in requests:
        request: TraceRequest | None = first
        computed = 0
        while request is not None:
            known = len(request.prompt) - 1
            text = np.concatenate([request.prompt, request.answer[:-1]])
            found = _add(seen, text, known)
            query += len(request.prompt)
            hits += max(found, computed)
            # What the turn before left in a block that is not full is found too.
            computed = len(text)
            request = next_turn(request, 0.0)
        beginnings += computed % BLOCK_SIZE > 0
    return InfiniteCache(hits / max(1, query), len(seen) + beginnings)


def _add(seen: set[int], text: np.ndarray, known: int) -> int:
    """Add the full blocks of a text; how many of its first `known` tokens stand in full blocks that were there."""
    data, width = text.tobytes(), BLOCK_SIZE * text.itemsize
    found = block = 0
    for number in range(len(text) // BLOCK_SIZE):
        block = hash((block, data[number * width : (number + 1) * width]))
        end = (number + 1) * BLOCK_SIZE
        if block not in seen:
            seen.add(block)
        elif end <= known and found == end - BLOCK_SIZE:
            found = end
    return found
