"""SequenceBlocks: the cache blocks of one sequence, and BlockCopy: one to be copied before a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rtcore.executor.base import Int64
from rtcore.kvcache.hash_chain import HashChain
from rtcore.kvcache.namespaces import Namespace

_NOTHING: Int64 = np.empty(0, np.int64)


@dataclass(slots=True, eq=False)
class SequenceBlocks:
    """The cache blocks of one sequence: row `row` of every group's block table, up to column `count`.

    length: tokens that the blocks are reserved for, so count == ceil(length / block_size). starts[g]: the
    first column of group g that is still held; what lies before left the group's window. writable: tokens up
    to which the sequence may write into the blocks that it has without looking whether others share them.
    nodes: the cached nodes of its leading full blocks. chain: the digests of its tokens. computed: its tokens,
    int64, whose K and V are in the blocks, as far as was said. place: where it waits to have nodes made for more of
    its blocks, None if it does not. tail: whether that is for the beginning of one that is not full, too.
    """

    row: int
    chain: HashChain
    namespace: Namespace
    starts: list[int]
    count: int = 0
    length: int = 0
    writable: int = 0
    nodes: list[int] = field(default_factory=list)
    cacheable: bool = True
    computed: Int64 = field(default_factory=lambda: _NOTHING)
    place: int | None = None
    tail: bool = False


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A block that has to be copied to another before the next step runs."""

    group: int
    source: int
    destination: int
