"""BlockManager: what sequences read back through their tables, whoever shares, copies, evicts or expires."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ops.errors import ResourceError
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.kvcache.match import Match
from rtcore.kvcache.policy import CachePolicy
from rtcore.kvcache.sequence_blocks import SequenceBlocks
from tests.rtcore.kvcache.memory import Memory


class BlockManagerMachine(RuleBasedStateMachine):
    """Random opening, forking, writing, truncating and closing, with few tokens so that much is shared."""

    @initialize(
        pools=st.lists(st.integers(2, 12), min_size=1, max_size=3),
        block_size=st.integers(1, 5),
        windows=st.lists(st.sampled_from([0, 0, 1, 4, 9]), min_size=3, max_size=3),
        share=st.sampled_from([1.0, 0.2]),
        protected=st.sampled_from([0.0, 0.5, 1.0]),
        hash_bits=st.sampled_from([0, 2, 32]),
    )
    def start(
        self,
        pools: list[int],
        block_size: int,
        windows: list[int],
        share: float,
        protected: float,
        hash_bits: int,
    ) -> None:
        def digest(data: tuple[int, bytes]) -> int:
            return crc32(repr(data).encode()) % (1 << hash_bits)

        policy = CachePolicy(ttl=20.0, protected_share=protected, tenant_share=share, digest=digest)
        self.memory = Memory(pools, block_size, windows=windows[: len(pools)], policy=policy)

    @property
    def live(self) -> list[SequenceBlocks]:
        return list(self.memory.tokens)

    @precondition(lambda self: len(self.live) < 8)
    @rule(tokens=st.lists(st.integers(1, 2), max_size=20), salt=st.sampled_from(["", "x"]))
    def open(self, tokens: list[int], salt: str) -> None:
        self.memory.open(tokens, salt)

    @precondition(lambda self: 0 < len(self.live) < 8)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """What a sequence has in full blocks is found while it runs, unless it must not be cached, or what it left
        behind its window is gone, which the last full block may need."""
        blocks = data.draw(st.sampled_from(self.live))
        tokens = self.memory.tokens[blocks]
        manager = self.memory.manager
        found = self.memory.open(tokens, self.memory.salts[blocks])
        if blocks.cacheable and not (any(manager.windows) and any(manager.counters.evictions.values())):
            assert len(self.memory.tokens[found]) >= len(tokens) - len(tokens) % manager.block_size

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        tokens=st.lists(st.integers(1, 2), min_size=1, max_size=12),
        tail=st.booleans(),
        decoded=st.booleans(),
    )
    def write(self, data: st.DataObject, tokens: list[int], tail: bool, decoded: bool) -> None:
        blocks = data.draw(st.sampled_from(self.live))
        begin = len(self.memory.tokens[blocks])
        if self.memory.manager.can_append(blocks, begin + len(tokens)):
            self.memory.write(blocks, tokens, tail=tail, decoded=decoded)
            return
        before = self.memory.manager.free_blocks
        with pytest.raises(ResourceError):
            self.memory.manager.append(blocks, begin + len(tokens), begin)
        assert self.memory.manager.free_blocks == before

    @precondition(lambda self: self.live)
    @rule(tokens=st.lists(st.integers(1, 2), min_size=8, max_size=8))
    def decode(self, tokens: list[int]) -> None:
        """A step in which all sequences that have written their blocks to the end compute one token more."""
        manager = self.memory.manager
        whole = [blocks for blocks in self.live if blocks.length == blocks.writable < manager.capacity]
        if not manager.can_add_blocks(len(whole)):
            before = manager.free_blocks
            with pytest.raises(ResourceError):
                manager.add_blocks(whole)
            assert manager.free_blocks == before
            return
        counts = [blocks.count for blocks in whole]
        manager.add_blocks(whole)
        assert [blocks.count - 1 for blocks in whole] == counts
        for blocks, token in zip(whole, tokens, strict=False):
            self.memory.write(blocks, [token], decoded=True)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def distrust(self, data: st.DataObject) -> None:
        self.memory.manager.distrust(data.draw(st.sampled_from(self.live)))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.integers(1, 12))
    def reserve_and_give_back(self, data: st.DataObject, more: int) -> None:
        """What a step that fails does."""
        blocks = data.draw(st.sampled_from(self.live))
        begin, reserved = len(self.memory.tokens[blocks]), blocks.length
        if self.memory.manager.can_append(blocks, begin + more):
            self.memory.manager.append(blocks, begin + more, begin)
            size = self.memory.manager.block_size
            for copy in self.memory.manager.take_copies():
                slots, source, target = self.memory.slots[copy.group], copy.source * size, copy.destination * size
                slots[target : target + size] = slots[source : source + size]
            self.memory.manager.truncate(blocks, reserved)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.memory.close(data.draw(st.sampled_from(self.live)))

    @rule(seconds=st.sampled_from([1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.memory.now += seconds
        self.memory.manager.cache.expire()

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "memory"):
            self.memory.check()

    def teardown(self) -> None:
        if hasattr(self, "memory"):
            for blocks in self.live:
                self.memory.close(blocks)
            assert self.memory.manager.free_blocks == self.memory.manager.num_blocks
            self.memory.now += 1000.0
            self.memory.manager.cache.expire()
            assert self.memory.manager.cached_blocks == [0] * len(self.memory.manager.pools)
            self.memory.check()


BlockManagerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBlockManager = BlockManagerMachine.TestCase


def test_blocks_given_back_last_are_handed_out_first() -> None:
    memory = Memory([8], 4, policy=CachePolicy(enabled=False))
    first, second = memory.open([]), memory.open([])
    memory.write(first, [1] * 8)
    memory.write(second, [2] * 8)
    assert memory.manager.tables[0][[first.row, second.row], :2].tolist() == [[0, 1], [2, 3]]
    memory.close(first)
    third = memory.open([])
    memory.write(third, [3] * 12)
    assert memory.manager.tables[0][third.row, :3].tolist() == [0, 1, 4]


def test_no_sequence_outgrows_the_tables() -> None:
    manager = BlockManager([9], 2, max_sequences=2, max_length=4)
    blocks = manager.open(manager.new_chain(CacheKey("1")), Match([]))
    manager.append(blocks, 2, 0)
    manager.add_blocks([blocks])
    manager.append(blocks, 4, 3)
    assert not manager.can_append(blocks, 5)
    with pytest.raises(ResourceError):
        manager.append(blocks, 5, 4)
    with pytest.raises(ResourceError):
        manager.add_blocks([blocks])
    assert manager.free_blocks == [7]


class TestSharing:
    def test_a_running_sequence_shares_its_blocks_as_soon_as_they_are_full(self) -> None:
        memory = Memory([8], 4)
        first = memory.open([])
        memory.write(first, [1, 2, 3, 4, 5, 6])
        second = memory.open([1, 2, 3, 4, 5, 6])
        assert memory.tokens[second] == [1, 2, 3, 4]
        assert memory.manager.pools[0].references[0] == 2

    def test_the_beginning_of_a_block_is_shared_and_copied_on_write(self) -> None:
        memory = Memory([8], 4)
        first = memory.open([])
        memory.write(first, [1, 2, 3, 4, 5, 6], tail=True)
        second = memory.open([1, 2, 3, 4, 5, 6, 7])
        assert len(memory.tokens[second]) == 6
        memory.write(second, [7])
        memory.write(first, [8])
        assert memory.manager.counters.copies == 1
        memory.check()

    def test_the_last_user_of_a_block_writes_in_place(self) -> None:
        memory = Memory([8], 4)
        assert memory.run([1, 2, 3, 4, 5, 6]) == 0
        assert memory.run([1, 2, 3, 4, 5, 6, 7]) == 6
        assert memory.manager.counters.copies == 0
        assert memory.manager.cached_blocks == [2]

    def test_part_of_a_full_block_can_be_reused(self) -> None:
        memory = Memory([8], 4)
        memory.run([1, 2, 3, 4])
        assert memory.run([1, 2, 3, 9, 9]) == 3

    def test_equal_blocks_computed_at_once_become_one(self) -> None:
        memory = Memory([8], 4)
        first, second = memory.open([]), memory.open([])
        memory.write(first, [1, 2, 3, 4])
        memory.write(second, [1, 2, 3, 4])
        assert memory.manager.tables[0][first.row, 0] == memory.manager.tables[0][second.row, 0]
        assert memory.manager.pools[0].free == 7

    def test_a_window_gives_back_what_left_it_and_hits_need_only_what_it_reaches(self) -> None:
        memory = Memory([9, 9], 2, windows=[0, 4])
        blocks = memory.open([])
        for token in range(14):
            memory.write(blocks, [token])
        assert blocks.starts == [0, 5]
        assert memory.manager.pools[1].references.count(1) == 2
        memory.close(blocks)
        assert memory.run([*range(14), 99]) == 14
        other = memory.open([])
        memory.write(other, [50] * 14)
        assert memory.manager.counters.evictions["capacity"] > 0
        memory.check()

    @pytest.mark.parametrize("live", [0, 3])
    def test_with_windows_alone_what_came_last_is_found_again(self, live: int) -> None:
        """Chains of 20 nodes that are asked for again and again, so that each keeps only the end of its blocks."""
        memory = Memory([24], 2, sequences=live + 1, windows=[4])

        def grow(tokens: list[int]) -> tuple[SequenceBlocks, int]:
            blocks = memory.open(tokens)
            found = len(memory.tokens[blocks])
            for token in tokens[found:]:
                memory.write(blocks, [token])
            return blocks, found

        held = [(grow(tokens)[0], tokens) for tokens in ([100 + number, *range(39)] for number in range(live))]
        known: list[list[int]] = []
        for number in range(8):
            known.append([number, *range(39)])
            memory.close(grow(known[-1])[0])
            for tokens in known:
                blocks = memory.open(tokens)
                found = len(memory.tokens[blocks])
                memory.close(blocks)
                memory.check()
            assert found == 40
        for blocks, tokens in held:
            memory.close(blocks)
            assert grow(tokens)[1] == 40


class TestKeys:
    @pytest.mark.parametrize(
        ("one", "two"),
        [
            (CacheKey("ab", "c"), CacheKey("a", "bc")),
            (CacheKey("a", "b", ""), CacheKey("a", "", "b")),
            (CacheKey("m;adapter:1:x", ""), CacheKey("m", "x")),
            (CacheKey("m", salt="s"), CacheKey("m")),
        ],
    )
    def test_parts_cannot_be_confused(self, one: CacheKey, two: CacheKey) -> None:
        assert one.encode() != two.encode()

    def test_different_salts_share_nothing(self) -> None:
        memory = Memory([16], 4)
        memory.run([1] * 9, "a")
        assert memory.run([1] * 9, "b") == 0
        assert memory.run([1] * 9, "a") == 8

    def test_a_collision_is_no_hit(self) -> None:
        memory = Memory([16], 4, policy=CachePolicy(digest=lambda data: 0))
        memory.run([1] * 8, "a")
        assert memory.run([2] * 8, "a") == 0
        assert memory.run([1] * 8, "b") == 0
        assert memory.manager.counters.collisions > 0


class TestEviction:
    def test_leaves_go_before_roots(self) -> None:
        memory = Memory([4], 4)
        memory.run([1] * 16)
        memory.run([2] * 4)
        assert memory.run([1] * 13) == 12

    def test_prefixes_that_were_hit_outlive_newer_ones_that_were_not(self) -> None:
        memory = Memory([8], 4)
        for _ in range(2):
            memory.run([1, 1, 1, 1, 1])
        for token in range(2, 12):
            memory.run([token] * 8)
        assert memory.run([1, 1, 1, 1, 1]) == 4

    def test_without_protection_they_do_not(self) -> None:
        memory = Memory([8], 4, policy=CachePolicy(protected_share=0.0))
        for _ in range(2):
            memory.run([1, 1, 1, 1, 1])
        for token in range(2, 12):
            memory.run([token] * 8)
        assert memory.run([1, 1, 1, 1, 1]) == 0

    def test_a_salt_keeps_no_more_than_its_share(self) -> None:
        memory = Memory([8], 4, policy=CachePolicy(tenant_share=0.25))
        memory.run([9] * 4, "b")
        for token in range(5):
            memory.run([token] * 4, "a")
        assert memory.manager.counters.evictions["quota"] == 3
        assert memory.run([9] * 5, "b") == 4

    def test_unused_blocks_expire(self) -> None:
        memory = Memory([8], 4, policy=CachePolicy(ttl=10.0))
        memory.run([1] * 4)
        memory.now = 8.0
        memory.run([2] * 4)
        memory.now = 12.0
        memory.manager.cache.expire()
        assert memory.manager.counters.evictions["expired"] == 1
        assert memory.run([2] * 5) == 4

    def test_memory_of_blocks_free_for_two_rounds_is_given_back(self) -> None:
        memory = Memory([8], 4, policy=CachePolicy(enabled=False))
        memory.run([1] * 12)
        pool = memory.manager.pools[0]
        assert (pool.written, pool.idle_memory().tolist()) == (3, [])
        memory.run([1] * 4)
        assert pool.idle_memory().tolist() == [1, 2]
        assert pool.written == 1
