"""check_blocks: every kind of corruption is noticed."""

from __future__ import annotations

import pytest

from ops.errors import EngineError
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.kvcache.invariants import check_blocks
from rtcore.kvcache.sequence_blocks import SequenceBlocks
from tests.rtcore.kvcache.memory import Memory


def _leak(memory: Memory, blocks: SequenceBlocks) -> None:
    memory.manager.pools[0].take(1)


def _swallow(memory: Memory, blocks: SequenceBlocks) -> None:
    memory.manager.pools[0].references[7] = 1


def _repeat(memory: Memory, blocks: SequenceBlocks) -> None:
    memory.manager.tables[0][blocks.row, 1] = memory.manager.tables[0][blocks.row, 0]


def _outside(memory: Memory, blocks: SequenceBlocks) -> None:
    memory.manager.tables[0][blocks.row, 1] = 99


def _too_long(memory: Memory, blocks: SequenceBlocks) -> None:
    blocks.length += 4


def _forget(memory: Memory, blocks: SequenceBlocks) -> None:
    memory.manager.live.clear()


def _miscount(memory: Memory, blocks: SequenceBlocks) -> None:
    memory.manager.cache.index.children[0] += 1


def _misplace(memory: Memory, blocks: SequenceBlocks) -> None:
    memory.manager.cache.node_of[0][0] = 5


def _strangers(memory: Memory, blocks: SequenceBlocks) -> None:
    blocks.namespace.users += 1


def _emigrate(memory: Memory, blocks: SequenceBlocks) -> None:
    index = memory.manager.cache.index
    index.root[1] = memory.manager.cache.namespaces.join(CacheKey("1", salt="x")).root


def _confuse(memory: Memory, blocks: SequenceBlocks) -> None:
    blocks.nodes.reverse()


def _tire(memory: Memory, blocks: SequenceBlocks) -> None:
    memory.manager.backlog.discard(blocks)


def _stray(memory: Memory, blocks: SequenceBlocks) -> None:
    memory.manager.backlog.discard(blocks)
    memory.manager.backlog.add(99, blocks)


def _abandon(memory: Memory, blocks: SequenceBlocks) -> None:
    place = blocks.place
    memory.manager.distrust(blocks)
    memory.manager.backlog.add(place, memory.open([7]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "corrupt",
    [
        _leak,
        _swallow,
        _repeat,
        _outside,
        _too_long,
        _forget,
        _miscount,
        _misplace,
        _strangers,
        _emigrate,
        _confuse,
        _tire,
        _stray,
        _abandon,
    ],
)
def test_invariants_notice_corruption(corrupt) -> None:  # type: ignore[no-untyped-def]
    memory = Memory([8], 4)
    blocks = memory.open([])
    memory.write(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9])
    memory.write(blocks, [2] * 4, decoded=True)
    memory.check()
    corrupt(memory, blocks)
    with pytest.raises(EngineError):
        check_blocks(memory.manager, [blocks])


def test_invariants_notice_a_wrong_order_of_eviction() -> None:
    memory = Memory([8], 4)
    memory.run([1, 2, 3, 4, 5, 6, 7, 8])
    memory.check()
    cache = memory.manager.cache
    nodes = cache.idle_nodes()
    assert len(nodes) == 2
    cache._order.remove(nodes)
    cache._order.add(nodes[::-1], cache.index.hits)
    with pytest.raises(EngineError, match="would be evicted after"):
        memory.check()


def test_more_namespaces_than_nodes_break_nothing() -> None:
    """A namespace has a root while a sequence waits in it, so roots are not bounded by the size of the cache."""
    memory = Memory([2], 1)
    *_, last = [memory.open([], salt) for salt in "abcd"]
    memory.write(last, [7])
    memory.close(last)
    memory.check()
