"""BlockManager: against a plain model of who owns what, and its invariants against deliberate corruption."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ops.errors import EngineError, ResourceError
from rtcore.kvcache.block_manager import BlockManager, SequenceBlocks


class BlockManagerMachine(RuleBasedStateMachine):
    """Random allocations, growth, truncation and freeing; the model counts blocks and remembers tables."""

    @initialize(pools=st.lists(st.integers(1, 12), min_size=1, max_size=3), block_size=st.integers(1, 5))
    def start(self, pools: list[int], block_size: int) -> None:
        self.manager = BlockManager(pools, block_size)
        self.lengths: dict[SequenceBlocks, int] = {}
        self.tables: dict[SequenceBlocks, list[list[int]]] = {}

    def needed(self, length: int) -> int:
        return -(-length // self.manager.block_size)

    def free_in(self) -> int:
        used = sum(self.needed(length) for length in self.lengths.values())
        return min(self.manager.num_blocks) - used

    def remember(self, blocks: SequenceBlocks, length: int) -> None:
        """The blocks kept so far stay where they are; the model learns the new ones."""
        tables = [table[: blocks.count].tolist() for table in blocks.tables]
        known = self.tables.get(blocks, [[] for _ in tables])
        for table, before in zip(tables, known, strict=True):
            common = min(len(table), len(before))
            assert table[:common] == before[:common]
        assert blocks.length == length
        self.lengths[blocks] = length
        self.tables[blocks] = tables

    @rule(length=st.integers(0, 30), spare=st.integers(0, 3))
    def allocate(self, length: int, spare: int) -> None:
        fits = self.needed(length) <= self.free_in()
        assert self.manager.can_allocate(length, spare) == (self.needed(length) + spare <= self.free_in())
        if not fits:
            before = self.manager.free_blocks
            with pytest.raises(ResourceError, match=r"blocks are needed, \d+ are free"):
                self.manager.allocate(length)
            assert self.manager.free_blocks == before
            return
        self.remember(self.manager.allocate(length), length)

    @precondition(lambda self: self.lengths)
    @rule(data=st.data(), more=st.integers(-3, 25))
    def append(self, data: st.DataObject, more: int) -> None:
        blocks = data.draw(st.sampled_from(list(self.lengths)))
        old = self.lengths[blocks]
        length = max(0, old + more)
        fits = self.needed(length) - self.needed(old) <= self.free_in() or length <= old
        assert self.manager.can_append(blocks, length) == fits
        if fits:
            self.manager.append(blocks, length)
            self.remember(blocks, max(old, length))
        else:
            with pytest.raises(ResourceError):
                self.manager.append(blocks, length)
            self.remember(blocks, old)

    @precondition(lambda self: self.lengths)
    @rule(data=st.data(), length=st.integers(0, 30))
    def truncate(self, data: st.DataObject, length: int) -> None:
        blocks = data.draw(st.sampled_from(list(self.lengths)))
        self.manager.truncate(blocks, length)
        self.remember(blocks, min(length, self.lengths[blocks]))

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(list(self.lengths)))
        self.manager.free(blocks)
        self.manager.free(blocks)
        del self.lengths[blocks], self.tables[blocks]

    @invariant()
    def consistent(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_invariants(self.lengths)
        used = sum(self.needed(length) for length in self.lengths.values())
        assert self.manager.free_blocks == [total - used for total in self.manager.num_blocks]
        for group in range(len(self.manager.num_blocks)):
            owned = [block for tables in self.tables.values() for block in tables[group]]
            assert len(owned) == len(set(owned))


BlockManagerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBlockManager = BlockManagerMachine.TestCase


def test_blocks_given_back_last_are_handed_out_first() -> None:
    manager = BlockManager([8], 4)
    first, second = manager.allocate(8), manager.allocate(8)
    assert first.tables[0][:2].tolist() == [0, 1]
    assert second.tables[0][:2].tolist() == [2, 3]
    manager.free(first)
    assert manager.allocate(12).tables[0][:3].tolist() == [0, 1, 4]


def _leak(manager: BlockManager, blocks: SequenceBlocks) -> list[SequenceBlocks]:
    return []


def _swallow(manager: BlockManager, blocks: SequenceBlocks) -> list[SequenceBlocks]:
    manager._free[0].pop()
    return [blocks]


def _share(manager: BlockManager, blocks: SequenceBlocks) -> list[SequenceBlocks]:
    return [blocks, SequenceBlocks([blocks.tables[0].copy()], blocks.count, blocks.length)]


def _repeat(manager: BlockManager, blocks: SequenceBlocks) -> list[SequenceBlocks]:
    blocks.tables[0][1] = blocks.tables[0][0]
    return [blocks]


def _outside(manager: BlockManager, blocks: SequenceBlocks) -> list[SequenceBlocks]:
    blocks.tables[0][1] = 99
    return [blocks]


def _too_long(manager: BlockManager, blocks: SequenceBlocks) -> list[SequenceBlocks]:
    blocks.length += manager.block_size
    return [blocks]


@pytest.mark.parametrize("corrupt", [_leak, _swallow, _share, _repeat, _outside, _too_long])
def test_invariants_notice_corruption(corrupt) -> None:  # type: ignore[no-untyped-def]
    manager = BlockManager([8], 4)
    blocks = manager.allocate(10)
    manager.check_invariants([blocks])
    owners = corrupt(manager, blocks)
    with pytest.raises(EngineError):
        manager.check_invariants(owners)
