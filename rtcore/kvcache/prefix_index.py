"""PrefixIndex: which tokens each cached block holds, and how to find it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

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
        self._block_size = block_size
        self._by_digest: dict[int, int] = {}
        # By `key_of` parent and first token.
        self._by_first: dict[int, int] = {}
        self._digest = array("q", [0]) * capacity
        self._key = array("q", [0]) * capacity
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

    @staticmethod
    def key_of(parent: int, first: int) -> int:
        """One number for what follows `parent`, a node or a root, and begins with token `first`."""
        return (parent << 32) | first

    def namespace(self, node: int) -> Namespace:
        return self._namespaces.by_root[self._root[node]]

    def find(self, digest: int) -> int:
        """The full node of a digest, NONE if there is none. Its tokens may differ: see `holds`."""
        return self._by_digest.get(digest, NONE)

    def lacks(self, digests: list[int]) -> bool:
        """Whether no full node has any of the digests, all of which differ."""
        return self._by_digest.keys().isdisjoint(digests) and len(set(digests)) == len(digests)

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
        return self.at(self.key_of(parent, first))

    def at(self, key: int) -> int:
        """The same by `key_of` both."""
        return self._by_first.get(key, NONE)

    def insert(self, namespace: Namespace, parent: int, pieces: Int64, digests: Sequence[int | None]) -> list[int]:
        """New nodes without blocks, each following the one before it; fewer where there is no room for more.

        pieces: int64 [nodes, tokens], full blocks with a digest each, which are new; or one without a digest that
        is not full.
        """
        nodes = self._allocate(len(digests))
        if not nodes:
            return nodes
        width = pieces.shape[1]
        if len(nodes) == 1:
            self._tokens[nodes[0], :width] = pieces[0]
        else:
            self._tokens[nodes] = pieces[: len(nodes)]
        if parent >= 0:
            self.children[parent] += 1
        else:
            namespace.users += 1
        root, parents, roots, children = namespace.root, self.parent, self._root, self.children
        hits, filled, keys = self.hits, self.filled, self._key
        known, by_digest, by_first = self._digest, self._by_digest, self._by_first
        for node, first, digest in zip(nodes, pieces[:, 0].tolist(), digests, strict=False):
            keys[node] = key = (parent << 32) | first
            by_first[key] = node
            parents[node] = parent
            roots[node] = root
            children[node] = 1
            hits[node] = 0
            filled[node] = width
            if digest is not None:
                known[node] = digest
                by_digest[digest] = node
            parent = node
        children[parent] = 0
        return nodes

    def _allocate(self, count: int) -> list[int]:
        """Up to `count` unused nodes."""
        unused = self._unused
        nodes = unused[-count:]
        del unused[-count:]
        more = min(count - len(nodes), self._capacity - self._fresh)
        if more > 0:
            nodes += range(self._fresh, self._fresh + more)
            self._fresh += more
        return nodes

    def extend(self, node: int, tokens: Int64, digest: int | None) -> None:
        """Have a node hold `tokens`, which begin with those that it holds; with a digest it becomes full."""
        self._tokens[node, : len(tokens)] = tokens
        self.filled[node] = len(tokens)
        if digest is not None:
            self._digest[node] = digest
            self._by_digest[digest] = node

    def hit(self, nodes: Iterable[int]) -> None:
        hits = self.hits
        for node in nodes:
            if hits[node] < _MAX_HITS:
                hits[node] += 1

    def remove(self, nodes: list[int]) -> None:
        """Forget nodes, each after all that follow it; the parents have as many children less."""
        digests, by_digest, by_first = self._digest, self._by_digest, self._by_first
        parents, children, filled, keys = self.parent, self.children, self.filled, self._key
        size = self._block_size
        for node in nodes:
            if children[node]:
                raise EngineError("A cached block would go before those that follow it.")
            if filled[node] == size:
                del by_digest[digests[node]]
            parent = parents[node]
            key = keys[node]
            newest = by_first.pop(key, node)
            if newest != node:
                by_first[key] = newest
            if parent >= 0:
                children[parent] -= 1
            else:
                self._namespaces.leave(self._namespaces.by_root[parent])
            filled[node] = 0
        self._unused += nodes

    def nodes(self) -> list[int]:
        """All nodes."""
        return [node for node in range(self._fresh) if self.filled[node]]
