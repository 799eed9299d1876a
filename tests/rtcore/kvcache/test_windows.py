"""BlockManager where every layer has a sliding window: as in general, and all sequences stay cached."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from rtcore.kvcache.policy import CachePolicy
from rtcore.kvcache.sequence_blocks import SequenceBlocks
from tests.rtcore.kvcache.memory import Memory
from tests.rtcore.kvcache.test_block_manager import BlockManagerMachine


class WindowsMachine(BlockManagerMachine):
    """Where all groups have windows, chains outlive the blocks at their beginnings: they need more nodes than there
    are blocks. Without collisions of hashes there is a node for every full block all the same."""

    @initialize(
        pools=st.lists(st.integers(2, 8), min_size=1, max_size=2),
        block_size=st.integers(1, 3),
        windows=st.lists(st.sampled_from([1, 4]), min_size=2, max_size=2),
    )
    def start(self, pools: list[int], block_size: int, windows: list[int]) -> None:
        policy = CachePolicy(ttl=20.0)
        self.memory = Memory(pools, block_size, windows=windows[: len(pools)], policy=policy)
        self.distrusted: set[SequenceBlocks] = set()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 8), first=st.integers(1, 30))
    def grow(self, data: st.DataObject, count: int, first: int) -> None:
        """As far as there are blocks, token by token, so that windows move on."""
        blocks = data.draw(st.sampled_from(self.live))
        for token in range(first, first + count):
            if self.memory.manager.can_append(blocks, len(self.memory.tokens[blocks]) + 1):
                self.memory.write(blocks, [token])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def distrust(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.live))
        self.distrusted.add(blocks)
        self.memory.manager.distrust(blocks)

    @invariant()
    def cached(self) -> None:
        if hasattr(self, "memory"):
            assert all(blocks.cacheable for blocks in self.live if blocks not in self.distrusted)


WindowsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWindows = WindowsMachine.TestCase
