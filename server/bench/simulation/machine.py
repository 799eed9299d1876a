"""The simulated machine: how long a step takes on it, and how large its cache is."""

from __future__ import annotations

from rtcore.scheduler.base import Work

BLOCK_SIZE = 16
MAX_SEQUENCES = 256
MAX_STEP_TOKENS = 8192
NUM_BLOCKS = 55_000

BASE_SECONDS = 4.5e-3
SECONDS_PER_TOKEN = 24.5e-6
SECONDS_PER_CACHED_TOKEN = 31e-9
SECONDS_PER_QUERY_AND_KEY = 1e-9
"""A model of 8 billion parameters in bf16 on one H200. Its weights are read once a step (15 GB at 4.3 TB/s, and
launches); prefill computes 40,800 tokens a second; a decoding sequence reads 131 kB of cache for every token of its
context; a prefill chunk computes 0.5 MFLOP for each query and key. 115 GB hold 55,000 blocks of 16 tokens."""


def step_seconds(works: list[Work]) -> float:
    """How long a step takes. The scheduler does not know these constants; it learns its own model of them."""
    contexts = [work.sequence.computed + 1 for work in works if work.tokens == 1]
    tokens, cached, pairs = len(contexts), sum(contexts), 0
    for work in works:
        if work.tokens > 1:
            begin = work.sequence.computed
            tokens += work.tokens
            cached += begin + work.tokens
            pairs += work.tokens * begin + work.tokens * (work.tokens + 1) // 2
    return (
        BASE_SECONDS
        + SECONDS_PER_TOKEN * tokens
        + SECONDS_PER_CACHED_TOKEN * cached
        + SECONDS_PER_QUERY_AND_KEY * pairs
    )
