"""The cache's part of EngineStats."""

from __future__ import annotations

from rtcore.kvcache.block_manager import BlockManager
from rtcore.stats import CacheStats


def cache_stats(blocks: BlockManager, block_bytes: list[int]) -> CacheStats:
    """The cache's state and counters; block_bytes: of one block of each group."""
    cached = blocks.cached_blocks
    free = [pool.free for pool in blocks.pools]
    counters = blocks.counters

    def total(counts: list[int]) -> int:
        return sum(count * size for count, size in zip(counts, block_bytes, strict=True))

    return CacheStats(
        query_tokens=counters.query_tokens,
        hit_tokens=counters.hit_tokens,
        evictions=dict(counters.evictions),
        collisions=counters.collisions,
        copies=counters.copies,
        bytes_used=total(blocks.num_blocks) - total(cached) - total(free),
        bytes_cached=total(cached),
        bytes_free=total(free),
        bytes_written=total([pool.written for pool in blocks.pools]),
    )
