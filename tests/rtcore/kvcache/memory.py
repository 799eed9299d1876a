"""A BlockManager beside a memory that it manages, so that tests see what sequences read back."""

from __future__ import annotations

import numpy as np

from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.kvcache.invariants import check_blocks
from rtcore.kvcache.sequence_blocks import SequenceBlocks


class Memory:
    """A manager and what its blocks would hold: the token and the salt that was written into every slot."""

    def __init__(self, pools: list[int], block_size: int, sequences: int = 8, **options: object) -> None:
        self.now = 0.0
        self.manager = BlockManager(
            pools, block_size, max_sequences=sequences, max_length=10_000, clock=lambda: self.now, **options
        )
        self.slots = [[None] * (count * block_size) for count in pools]
        self.tokens: dict[SequenceBlocks, list[int]] = {}
        self.salts: dict[SequenceBlocks, str] = {}

    def open(self, tokens: list[int], salt: str = "") -> SequenceBlocks:
        chain = self.manager.new_chain(CacheKey("1", salt=salt))
        match = self.manager.match(chain, np.array(tokens, np.int64))
        blocks = self.manager.open(chain, match)
        self.tokens[blocks] = tokens[: match.tokens]
        self.salts[blocks] = salt
        return blocks

    def write(
        self, blocks: SequenceBlocks, tokens: list[int], *, tail: bool = False, decoded: bool = False
    ) -> None:
        """Append tokens, run the copies, write, and commit them, or note them as decoding does."""
        begin = len(self.tokens[blocks])
        self.manager.append(blocks, begin + len(tokens), begin)
        size = self.manager.block_size
        for copy in self.manager.take_copies():
            slots, source, target = self.slots[copy.group], copy.source * size, copy.destination * size
            slots[target : target + size] = slots[source : source + size]
        self.tokens[blocks] = self.tokens[blocks] + tokens
        for group, table in enumerate(self.manager.tables):
            for position in range(begin, begin + len(tokens)):
                slot = int(table[blocks.row, position // size]) * size + position % size
                self.slots[group][slot] = (self.tokens[blocks][position], self.salts[blocks])
        keep = self.manager.note if decoded else self.manager.commit
        keep(blocks, np.array(self.tokens[blocks], np.int64), tail)

    def read(self, blocks: SequenceBlocks, group: int) -> list[object]:
        size = self.manager.block_size
        return [
            self.slots[group][
                int(self.manager.tables[group][blocks.row, position // size]) * size + position % size
            ]
            for position in range(blocks.starts[group] * size, len(self.tokens[blocks]))
        ]

    def close(self, blocks: SequenceBlocks) -> None:
        self.manager.close(blocks)
        self.manager.close(blocks)
        del self.tokens[blocks], self.salts[blocks]

    def run(self, tokens: list[int], salt: str = "") -> int:
        """A sequence that comes, computes everything and goes; how many tokens it found cached."""
        blocks = self.open(tokens[:-1], salt)
        found = len(self.tokens[blocks])
        self.write(blocks, tokens[found:], tail=True)
        self.close(blocks)
        return found

    def check(self) -> None:
        check_blocks(self.manager, self.tokens)
        for blocks, tokens in self.tokens.items():
            for group, start in enumerate(blocks.starts):
                expected = [(token, self.salts[blocks]) for token in tokens[start * self.manager.block_size :]]
                assert self.read(blocks, group) == expected
