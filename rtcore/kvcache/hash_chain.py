"""CacheKey and HashChain: what names a block of the prefix cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rtcore.executor.base import Int64

Digest = Callable[[tuple[int, bytes]], int]
"""From the digest before and more data to the next one, 64 bits with a sign. `hash` mixes the digest before with
SipHash of the data, under a key of the process (PEP 456)."""


class CacheKey(NamedTuple):
    """Everything but tokens that decides what K and V of a token are, and who may share them.

    version: of the model. adapter: its name, empty for none. salt: of the tenant; requests with different
    salts share nothing.
    """

    version: str
    adapter: str = ""
    salt: str = ""

    def encode(self) -> bytes:
        """Bytes that differ whenever a part does: each part has its kind and its length before it."""
        parts = []
        for kind, text in (("model", self.version), ("adapter", self.adapter), ("salt", self.salt)):
            data = text.encode()
            parts.append(b"%s:%d:%s;" % (kind.encode(), len(data), data))
        return b"".join(parts)


class HashChain:
    """The digests of one sequence's blocks: each covers the key and all tokens up to the end of its block.

    A digest only finds a block quickly; the prefix cache compares key, chain and tokens before it uses one. So a
    collision costs no more than a block that is not cached, and 64 bits make that rare: with a million blocks the
    chance that any two collide is one in thirty million.
    """

    __slots__ = ("_digest", "_digests", "_root", "block_size", "key")

    def __init__(self, key: CacheKey, block_size: int, digest: Digest = hash) -> None:
        """digest: the hash function; tests give one that collides."""
        self.key = key
        self.block_size = block_size
        self._digest = digest
        self._digests: list[int] = []
        self._root = digest((0, key.encode()))

    def block(self, tokens: Int64, index: int) -> int:
        """The digest of full block `index`; tokens int64 [>= (index + 1) * block_size] are the sequence's."""
        return self.blocks(tokens, index, index + 1)[0]

    def blocks(self, tokens: Int64, first: int, end: int) -> list[int]:
        """The digests of full blocks `first` to `end` - 1; tokens int64 [>= end * block_size]."""
        digests = self._digests
        if len(digests) < end:
            data = tokens[len(digests) * self.block_size : end * self.block_size].tobytes()
            width = len(data) // (end - len(digests))
            link, digest = digests[-1] if digests else self._root, self._digest
            for begin in range(0, len(data), width):
                link = digest((link, data[begin : begin + width]))
                digests.append(link)
        return digests[first:end]

    def piece(self, tokens: Int64, index: int) -> int:
        """The digest of block `index` as far as `tokens` reach into it, which is all of it or its beginning."""
        if (index + 1) * self.block_size <= len(tokens):
            return self.block(tokens, index)
        if index:
            self.block(tokens, index - 1)
        parent = self._digests[index - 1] if index else self._root
        return self._digest((parent, tokens[index * self.block_size :].tobytes()))
