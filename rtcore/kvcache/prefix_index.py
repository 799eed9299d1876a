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


class _Columns:
    """The columns of an index as arrays of numpy, over the same memory, to write many elements at once."""

    def __init__(self, index: PrefixIndex) -> None:
        self.parent = np.frombuffer(index.parent, np.int32)
        self.root = np.frombuffer(index.root, np.int32)
        self.key = np.frombuffer(index.key, np.int64)
        self.hits = np.frombuffer(index.hits, np.uint8)
        self.children = np.frombuffer(index.children, np.int32)
        self.filled = np.frombuffer(index.filled, np.int32)
        self.digest = np.frombuffer(index.digest, np.int64)


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
        self.digest = array("q", [0]) * capacity
        self.key = array("q", [0]) * capacity
        self._tokens = np.zeros((capacity, block_size), np.int32)
        self._namespaces = namespaces
        self.parent = array("i", [NONE]) * capacity
        self.root = array("i", [NONE]) * capacity
        self.filled = array("i", [0]) * capacity
        self.children = array("i", [0]) * capacity
        self.hits = bytearray(capacity)
        self.last_use = array("d", [0.0]) * capacity
        self.blocks = [array("i", [NONE]) * capacity for _ in range(groups)]
        self._columns = _Columns(self)

    def __len__(self) -> int:
        return self._fresh - len(self._unused)

    @property
    def room(self) -> int:
        """How many more nodes it can hold."""
        return len(self._unused) + self._capacity - self._fresh

    @staticmethod
    def key_of(parent: int, first: int) -> int:
        """One number for what follows `parent`, a node or a root, and begins with token `first`."""
        return (parent << 32) | first

    def namespace(self, node: int) -> Namespace:
        return self._namespaces.by_root[self.root[node]]

    def find(self, digest: int) -> int:
        """The full node of a digest, NONE if there is none. Its tokens may differ: see `holds`."""
        return self._by_digest.get(digest, NONE)

    def chain(self, parent: int, digests: list[int]) -> list[int]:
        """The full nodes of the digests, from the first on, as far as each follows the one before it."""
        find, parents = self._by_digest.get, self.parent
        nodes: list[int] = []
        for digest in digests:
            node = find(digest, NONE)
            if node == NONE or parents[node] != parent:
                break
            nodes.append(node)
            parent = node
        return nodes

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

    def insert(self, namespace: Namespace, parent: int, pieces: Int64, digests: list[int]) -> list[int]:
        """New full nodes without blocks, each following the one before it; fewer where there is no room for more.

        pieces: int64 [nodes, block_size], their tokens. The digests are new.
        """
        nodes = self._allocate(len(digests))
        count = len(nodes)
        if count < 2:
            for node in nodes:
                self._fill(node, namespace, parent, pieces[0], digests[0])
            return nodes
        parents = [parent, *nodes[:-1]]
        firsts = pieces[:count, 0].tolist()
        keys = [self.key_of(before, first) for before, first in zip(parents, firsts, strict=True)]
        self._by_first.update(zip(keys, nodes, strict=True))
        self._by_digest.update(zip(digests, nodes, strict=False))
        self._follow(namespace, parent)
        added = np.array(nodes)
        columns = self._columns
        columns.parent[added] = parents
        columns.root[added] = namespace.root
        columns.key[added] = keys
        columns.hits[added] = 0
        columns.children[added[:-1]] = 1
        columns.filled[added] = self._block_size
        columns.digest[added] = digests[:count]
        self._tokens[added] = pieces[:count]
        return nodes

    def insert_beginning(self, namespace: Namespace, parent: int, tokens: Int64) -> list[int]:
        """A new node that is not full, without blocks; none if there is no room for it."""
        nodes = self._allocate(1)
        for node in nodes:
            self._fill(node, namespace, parent, tokens, None)
        return nodes

    def _fill(self, node: int, namespace: Namespace, parent: int, tokens: Int64, digest: int | None) -> None:
        """The same for a single node: elements of an array.array each take a fraction of a function of numpy."""
        key = self.key_of(parent, tokens.item(0))
        self._by_first[key] = node
        self._follow(namespace, parent)
        self.parent[node], self.root[node], self.key[node] = parent, namespace.root, key
        self.hits[node] = 0
        self.extend(node, tokens, digest)

    def _follow(self, namespace: Namespace, parent: int) -> None:
        """A node comes to follow `parent`, which may be the namespace's root."""
        if parent >= 0:
            self.children[parent] += 1
        else:
            namespace.users += 1

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
            self.digest[node] = digest
            self._by_digest[digest] = node

    def hit(self, nodes: Iterable[int]) -> None:
        hits = self.hits
        for node in nodes:
            if hits[node] < _MAX_HITS:
                hits[node] += 1

    def remove(self, nodes: list[int]) -> None:
        """Forget nodes, each after all that follow it; the parents have as many children less."""
        digests, by_digest, by_first = self.digest, self._by_digest, self._by_first
        parents, children, filled, keys = self.parent, self.children, self.filled, self.key
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

    def nodes(self) -> Int64:
        """All nodes."""
        return np.flatnonzero(self._columns.filled[: self._fresh])
