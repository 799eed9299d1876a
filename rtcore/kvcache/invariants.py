"""What must hold of blocks, references and cached nodes between steps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ops.errors import EngineError
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
    children = np.zeros(max(nodes, default=0) + 1, np.int64)
    for node in nodes:
        if index.parent[node] >= 0:
            children[index.parent[node]] += 1
            if index.filled[index.parent[node]] != manager.block_size:
                raise EngineError(f"Node {node} follows one that is not full.")
        for group, column in enumerate(index.blocks):
            if column[node] != NONE and cache.node_of[group][column[node]] != node:
                raise EngineError(f"Node {node} and its block of cache group {group} disagree.")
    if any(children[node] != index.children[node] for node in nodes):
        raise EngineError("The prefix index miscounts children.")
    seen: set[int] = set()
    for node in cache.idle_nodes():
        if index.parent[node] in seen:
            raise EngineError(f"Node {node} would be evicted after the one that it follows.")
        seen.add(node)
    users: dict[int, int] = {}
    for node in nodes:
        root = index.namespace(node).root
        parent = index.parent[node]
        if parent < 0:
            users[root] = users.get(root, 0) + 1
        if (index.namespace(parent).root if parent >= 0 else parent) != root:
            raise EngineError(f"Node {node} is in another namespace than the one that it follows.")
    for blocks in owners:
        users[blocks.namespace.root] = users.get(blocks.namespace.root, 0) + 1
        if len(blocks.nodes) > blocks.length // manager.block_size:
            raise EngineError("A sequence has more cached nodes than full blocks.")
        known = len(blocks.computed) // manager.block_size
        if index.confirmed(blocks.nodes[:known], blocks.computed) < min(known, len(blocks.nodes)):
            raise EngineError("A sequence has cached nodes of other tokens than its own.")
    if users != {namespace.root: namespace.users for namespace in cache.namespaces.all()}:
        raise EngineError("The users of the cache's namespaces do not add up.")
