"""Backlog: running sequences with full blocks that the prefix cache has no nodes for yet."""

from __future__ import annotations

from ops.errors import EngineError
from rtcore.executor.base import Int64
from rtcore.kvcache.prefix_index import PrefixIndex
from rtcore.kvcache.sequence_blocks import SequenceBlocks


class Backlog:
    """Sequences by where they go on from the nodes that they have: after which node, or root, and with which token.

    Whoever looks for a cached beginning passes that place before it can reach a block behind it, so asking here at
    every node on the way misses none. There is one sequence at most for a place: where a second one comes, both
    have their nodes made.
    """

    def __init__(self) -> None:
        self._at: dict[int, SequenceBlocks] = {}

    def __len__(self) -> int:
        return len(self._at)

    @staticmethod
    def place(blocks: SequenceBlocks, tokens: Int64) -> int:
        """Where a sequence with more `tokens` than its nodes hold goes on."""
        nodes = blocks.nodes
        parent = nodes[-1] if nodes else blocks.namespace.root
        return PrefixIndex.key_of(parent, tokens.item(len(nodes) * blocks.chain.block_size))

    def at(self, place: int) -> SequenceBlocks | None:
        return self._at.get(place)

    def add(self, place: int, blocks: SequenceBlocks) -> None:
        """Have a sequence wait; nobody else waits at its place."""
        self._at[place] = blocks
        blocks.place = place

    def discard(self, blocks: SequenceBlocks) -> None:
        """The sequence waits no longer; nothing happens if it did not."""
        if blocks.place is not None:
            del self._at[blocks.place]
            blocks.place = None

    def along(self, root: int, nodes: list[int], tokens: Int64, size: int) -> list[SequenceBlocks]:
        """The sequences that go on from a chain as `tokens` do: from its root or one of its `nodes`."""
        at = self._at
        firsts = tokens[: (len(nodes) + 1) * size : size].tolist()
        return [
            at[place]
            for parent, first in zip([root, *nodes], firsts, strict=False)
            if (place := PrefixIndex.key_of(parent, first)) in at
        ]

    def check(self, live: set[SequenceBlocks]) -> None:
        """Raise EngineError unless exactly the sequences with full blocks and no nodes for them wait, each where a
        search comes by."""
        for blocks in live:
            size = blocks.chain.block_size
            late = blocks.tail or len(blocks.computed) // size > len(blocks.nodes)
            if (late and blocks.cacheable) != (blocks.place is not None):
                raise EngineError("A sequence waits to be cached that need not, or one does not that should.")
            if blocks.place is None:
                continue
            if self._at.get(blocks.place) is not blocks or self.place(blocks, blocks.computed) != blocks.place:
                raise EngineError("A sequence waits to be cached where nobody would find it.")
        if len(self._at) != sum(blocks.place is not None for blocks in live):
            raise EngineError("A sequence that is gone waits to be cached.")
