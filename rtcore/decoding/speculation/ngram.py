"""NgramProposer: what followed the last time that the sequence ended in the same tokens (prompt lookup).

Source: Saxena, "Prompt Lookup Decoding", 2023 (github.com/apoorvumang/prompt-lookup-decoding); the idea goes back
to Yang et al., "Inference with Reference", 2023 (arXiv 2304.04487).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.decoding.speculation.base import Ask, Proposer

SIZES = (5, 3)
"""Lengths of n-grams, tried in this order: the longer the match, the likelier its continuation. After two tokens
alone another text follows more often than not."""

_SMALLEST_TABLE = 256
_NONE = -1
_FACTOR = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


class NgramProposer(Proposer):
    """Keeps an index for each sequence, which takes constant work and about 16 bytes for each of its tokens."""

    def __init__(self) -> None:
        self._indexes: dict[str, NgramIndex] = {}

    def propose(self, asks: list[Ask]) -> list[Sequence[int]]:
        drafts: list[Sequence[int]] = []
        for ask in asks:
            index = self._indexes.get(ask.key)
            if index is None:
                index = self._indexes[ask.key] = NgramIndex()
            index.extend(ask.tokens)
            drafts.append(index.continuation(ask.tokens, ask.count))
        return drafts

    def forget(self, key: str) -> None:
        self._indexes.pop(key, None)

    def close(self) -> None:
        self._indexes.clear()


class NgramIndex:
    """Where each n-gram of a growing sequence was seen last, by its hash.

    Two n-grams of one hash share a place and the later one has it, so a place says where to look, not what is
    there. The last token's n-grams are not in it, since nothing has followed them yet.
    """

    def __init__(self) -> None:
        self._known = 0
        self._bits = _SMALLEST_TABLE.bit_length() - 1
        self._tables = [np.full(_SMALLEST_TABLE, _NONE, np.int32) for _ in SIZES]

    def extend(self, tokens: NDArray[np.int64]) -> None:
        """Take in what was added to a sequence; tokens: int64 [n], all of it."""
        # The n-grams that end at index `known` are the next to come in.
        last = len(tokens) - 1
        if last <= self._known:
            return
        if 2 * last > len(self._tables[0]):
            self._bits = (4 * last - 1).bit_length()
            self._tables = [np.full(1 << self._bits, _NONE, np.int32) for _ in SIZES]
            self._known = 0
        if last - self._known == 1:
            for size, table in zip(SIZES, self._tables, strict=True):
                if self._known + 1 >= size:
                    table[self._place(tokens[self._known + 1 - size : self._known + 1].tolist())] = last
        else:
            for size, table in zip(SIZES, self._tables, strict=True):
                self._fill(table, tokens, size, max(self._known, size - 1), last)
        self._known = last

    def _fill(self, table: NDArray[np.int32], tokens: NDArray[np.int64], size: int, begin: int, end: int) -> None:
        """Enter the n-grams that end at begin..end-1, in one go."""
        if begin >= end:
            return
        hashes = np.zeros(end - begin, np.uint64)
        for offset in range(size - 1, -1, -1):
            hashes = (hashes + tokens[begin - offset : end - offset].astype(np.uint64)) * np.uint64(_FACTOR)
            hashes ^= hashes >> np.uint64(32)
        # Of equal places the last assignment stays, which is the latest n-gram.
        table[hashes >> np.uint64(64 - self._bits)] = np.arange(begin + 1, end + 1, dtype=np.int32)

    def _place(self, gram: list[int]) -> int:
        value = 0
        for token in gram:
            value = (value + token) * _FACTOR & _MASK
            value ^= value >> 32
        return value >> (64 - self._bits)

    def continuation(self, tokens: NDArray[np.int64], count: int) -> list[int]:
        """Up to `count` tokens that followed the last occurrence of the longest n-gram that the sequence ends in.

        Where that occurrence reaches the end of the sequence, it is taken to repeat.
        """
        length = len(tokens)
        tail = tokens[-SIZES[0] :].tolist()
        for size, table in zip(SIZES, self._tables, strict=True):
            if length <= size:
                continue
            gram = tail[-size:]
            begin = table.item(self._place(gram))
            if begin == _NONE or tokens[begin - size : begin].tolist() != gram:
                continue
            found: list[int] = tokens[begin : begin + count].tolist()
            while len(found) < count:
                found += found[: count - len(found)]
            return found
        return []


def load(bundle: Bundle, config: EngineConfig) -> Proposer:
    """For the registry; it needs nothing of either."""
    return NgramProposer()
