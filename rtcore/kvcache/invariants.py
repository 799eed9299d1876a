"""What must hold of blocks, references and cached nodes between steps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ops.errors import EngineError
from rtcore.executor.base import Int32, Int64
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.prefix_index import NONE
from rtcore.kvcache.sequence_blocks import SequenceBlocks


def check_blocks(manager: BlockManager, owners: Iterable[SequenceBlocks]) -> None:
    """Raise EngineError unless every block is free, cached, or referenced exactly as often as `owners` hold it."""
    owners = list(owners)
    for blocks in owners:
        if blocks.count != manager.blocks_for(blocks.length):
            raise EngineError(f"{blocks.count} blocks are held for {blocks.length} tokens.")
    if len({blocks.row for blocks in owners}) != len(owners) or set(owners) != manager.live:
        raise EngineError("Two sequences share a row of the block tables, or one has a row without being live.")
    for group in range(len(manager.pools)):
        _check_group(manager, owners, group)
    manager.backlog.check(manager.live)
    _check_nodes(manager, owners)


def _check_group(manager: BlockManager, owners: list[SequenceBlocks], group: int) -> None:
    pool = manager.pools[group]
    counts = np.zeros(pool.count, np.int64)
    for blocks in owners:
        held = manager.tables[group][blocks.row, blocks.starts[group] : blocks.count]
        if len(np.unique(held)) != len(held) or (len(held) and not 0 <= held.min() <= held.max() < pool.count):
            raise EngineError(f"A block table of cache group {group} repeats a block or leaves the pool.")
        counts[held] += 1
    references = np.array(pool.references)
    if not np.array_equal(counts, references):
        wrong = np.flatnonzero(counts != references)[:8].tolist()
        raise EngineError(f"Reference counts of cache group {group} do not add up for blocks {wrong}.")
    cached = np.array(manager.cache.node_of[group]) != NONE
    free = np.zeros(pool.count, np.int64)
    np.add.at(free, pool.free_list(), 1)
    if not np.array_equal(free, (references == 0) & ~cached):
        raise EngineError(f"The free blocks of cache group {group} are not those without references and nodes.")
    if manager.cache.evictable(group) != np.count_nonzero((references == 0) & cached):
        raise EngineError(
            f"The evictable blocks of cache group {group} are not its cached ones without references."
        )


def _check_nodes(manager: BlockManager, owners: list[SequenceBlocks]) -> None:
    cache = manager.cache
    index = cache.index
    nodes = index.nodes()
    if len(nodes) != len(index):
        raise EngineError("The prefix index miscounts its nodes.")
    parents = np.array(index.parent)[nodes]
    follow, first = nodes[parents >= 0], nodes[parents < 0]
    leaders = parents[parents >= 0]
    short = np.array(index.filled)[leaders] != manager.block_size
    if short.any():
        raise EngineError(f"Node {follow[short][0]} follows one that is not full.")
    for group, column in enumerate(index.blocks):
        blocks = np.array(column)[nodes]
        held = blocks != NONE
        strange = np.array(cache.node_of[group])[blocks[held]] != nodes[held]
        if strange.any():
            raise EngineError(f"Node {nodes[held][strange][0]} and its block of cache group {group} disagree.")
    size = int(nodes.max(initial=0)) + 1
    if (np.bincount(leaders, minlength=size)[nodes] != np.array(index.children)[nodes]).any():
        raise EngineError("The prefix index miscounts children.")
    _check_order(np.array(cache.idle_nodes(), np.int64), np.array(index.parent))
    roots = np.array(index.root)
    if (roots[follow] != roots[leaders]).any() or (roots[first] != parents[parents < 0]).any():
        raise EngineError("A node is in another namespace than the one that it follows.")
    counts = zip(*np.unique(roots[first], return_counts=True), strict=True)
    users = {int(root): int(count) for root, count in counts}
    for owner in owners:
        users[owner.namespace.root] = users.get(owner.namespace.root, 0) + 1
        if len(owner.nodes) > owner.length // manager.block_size:
            raise EngineError("A sequence has more cached nodes than full blocks.")
        # The nodes of one that is not cached any further may be gone: nothing is to follow them.
        known = len(owner.computed) // manager.block_size if owner.cacheable else 0
        if index.confirmed(owner.nodes[:known], owner.computed) < min(known, len(owner.nodes)):
            raise EngineError("A sequence has cached nodes of other tokens than its own.")
    if users != {namespace.root: namespace.users for namespace in cache.namespaces.all()}:
        raise EngineError("The users of the cache's namespaces do not add up.")


def _check_order(order: Int64, parent: Int32) -> None:
    """Raise EngineError unless every node of the order of eviction stands before the one that it follows."""
    place = np.full(len(parent), len(order))
    place[order] = np.arange(len(order))
    follow = order[parent[order] >= 0]  # others have roots, whose numbers are no places
    late = place[parent[follow]] < place[follow]
    if late.any():
        raise EngineError(f"Node {follow[late][0]} would be evicted after the one that it follows.")
