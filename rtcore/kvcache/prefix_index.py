"""PrefixIndex: which tokens each cached block holds, and how to find it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from ops.errors import EngineError
from rtcore.executor.base import Int64
from rtcore.kvcache.namespaces import Namespace, Namespaces

NONE = -1
_MAX_HITS = 255


class PrefixIndex:
    """Nodes in chains: a node is one block's worth of tokens after those of its parent.

    A node with `block_size` tokens is full and found by the digest of its chain; one with fewer is the
    beginning of a block and found by its parent and its first token, as full ones are too, the newest of them.
    blocks[g][node] is its block of cache group g, NONE where that was given back. All columns are flat
    arrays, so that a million nodes mean no million objects; a node without tokens is none, whatever else is there.
    """

    def __init__(self, capacity: int, block_size: int, groups: int, namespaces: Namespaces) -> None:
        """capacity: nodes at most."""
        self._unused: list[int] = []
        self._fresh = 0
        self._capacity = capacity
        self._by_digest: dict[bytes, int] = {}
        # By parent << 32 | first token.
        self._by_first: dict[int, int] = {}
        self._digest: list[bytes | None] = []
        self._tokens = np.zeros((capacity, block_size), np.int32)
        self._namespaces = namespaces
        self.parent = array("i", [NONE]) * capacity
        self._root = array("i", [NONE]) * capacity
        self.filled = array("i", [0]) * capacity
        self.children = array("i", [0]) * capacity
        self.hits = bytearray(capacity)
        self.last_use = array("d", [0.0]) * capacity
        self.blocks = [array("i", [NONE]) * capacity for _ in range(groups)]

    def __len__(self) -> int:
        return self._fresh - len(self._unused)

    def namespace(self, node: int) -> Namespace:
        return self._namespaces.by_root[self._root[node]]

    def find(self, digest: bytes) -> int:
        """The full node of a digest, NONE if there is none. Its tokens may differ: see `holds`."""
        return self._by_digest.get(digest, NONE)

    def holds(self, node: int, parent: int, tokens: Int64) -> bool:
        """Whether a node follows `parent` and begins with `tokens`."""
        return self.parent[node] == parent and self.common(node, tokens) == len(tokens)

    def common(self, node: int, tokens: Int64) -> int:
        """How many of `tokens` the node begins with."""
        width = min(self.filled[node], len(tokens))
        differ = np.flatnonzero(self._tokens[node, :width] != tokens[:width])
        return int(differ[0]) if len(differ) else width

    def confirmed(self, nodes: list[int], tokens: Int64) -> int:
        """How many of the full `nodes`, from the first on, hold `tokens` block by block."""
        if not nodes:
            return 0
        found = self._tokens[nodes]
        wrong = np.flatnonzero((found != tokens[: found.size].reshape(found.shape)).any(axis=1))
        return int(wrong[0]) if len(wrong) else len(nodes)

    def beginning(self, parent: int, first: int) -> int:
        """The newest node that follows `parent` and begins with token `first`, NONE if there is none."""
        return self._by_first.get((parent << 32) | first, NONE)

    def insert(self, namespace: Namespace, parent: int, tokens: Int64, digest: bytes | None) -> int:
        """A new node without blocks; it is full exactly if there is a digest. NONE if there is no room for it."""
        if self._unused:
            node = self._unused.pop()
        elif self._fresh == self._capacity:
            return NONE
        else:
            node = self._fresh
            self._fresh += 1
            self._digest.append(None)
        self.parent[node] = parent
        self._root[node] = namespace.root
        self.hits[node] = 0
        if parent >= 0:
            self.children[parent] += 1
        else:
            namespace.users += 1
        self.extend(node, tokens, digest)
        self._by_first[(parent << 32) | tokens.item(0)] = node
        return node

    def extend(self, node: int, tokens: Int64, digest: bytes | None) -> None:
        """Have a node hold `tokens`, which begin with those that it holds; with a digest it becomes full."""
        self._tokens[node, : len(tokens)] = tokens
        self.filled[node] = len(tokens)
        self._digest[node] = digest
        if digest is not None:
            self._by_digest[digest] = node

    def hit(self, nodes: Iterable[int]) -> None:
        hits = self.hits
        for node in nodes:
            if hits[node] < _MAX_HITS:
                hits[node] += 1

    def remove(self, nodes: list[int]) -> None:
        """Forget nodes, each after all that follow it; the parents have as many children less."""
        digests, by_digest, by_first = self._digest, self._by_digest, self._by_first
        parents, children, filled, tokens = self.parent, self.children, self.filled, self._tokens
        for node in nodes:
            if children[node]:
                raise EngineError("A cached block would go before those that follow it.")
            digest = digests[node]
            if digest is not None:
                del by_digest[digest]
            parent = parents[node]
            key = (parent << 32) | tokens.item(node, 0)
            if by_first.get(key) == node:
                del by_first[key]
            if parent >= 0:
                children[parent] -= 1
            else:
                self._namespaces.leave(self._namespaces.by_root[parent])
            filled[node] = 0
        self._unused += nodes

    def nodes(self) -> list[int]:
        """All nodes."""
        return [node for node in range(self._fresh) if self.filled[node]]
