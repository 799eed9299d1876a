"""References: how often each block is referenced, and what becomes of blocks that come to be or cease to be so."""

from __future__ import annotations

from rtcore.kvcache.block_pool import BlockPool
from rtcore.kvcache.prefix_cache import PrefixCache
from rtcore.kvcache.prefix_index import NONE


class References:
    """Moves blocks of a group between being free, cached and held by sequences."""

    def __init__(self, pools: list[BlockPool], cache: PrefixCache) -> None:
        self._pools = pools
        self._cache = cache

    def take(self, group: int, count: int) -> list[int]:
        """Free blocks with one reference each, evicted first if need be; the caller has checked that there are as
        many."""
        pool = self._pools[group]
        if pool.free < count:
            self._cache.evict(group, count - pool.free)
        return pool.take(count)

    def hold(self, group: int, held: list[int]) -> None:
        """One reference more to each block."""
        references, node_of = self._pools[group].references, self._cache.node_of[group]
        idle = []
        for block in held:
            if not references[block]:
                idle.append(node_of[block])
            references[block] += 1
        if idle:
            self._cache.revive(group, idle)

    def drop(self, group: int, held: list[int]) -> None:
        """One reference less to each block of a sequence; those without any are then cached, or free."""
        pool, node_of = self._pools[group], self._cache.node_of[group]
        references = pool.references
        free, idle = [], []
        for block in held:
            references[block] = left = references[block] - 1
            if not left:
                node = node_of[block]
                if node == NONE:
                    free.append(block)
                else:
                    idle.append(node)
        if free:
            pool.give_back(free)
        if idle:
            self._cache.retain(group, idle)
