"""Publisher: makes the full blocks of running sequences nodes of the prefix cache, at once or when it matters."""

from __future__ import annotations

from rtcore.executor.base import Int32, Int64
from rtcore.kvcache.backlog import Backlog
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.kvcache.prefix_cache import Held, PrefixCache
from rtcore.kvcache.prefix_index import NONE
from rtcore.kvcache.references import References
from rtcore.kvcache.sequence_blocks import SequenceBlocks


class Publisher:
    """A block that a running sequence filled has a node made when somebody could use it: when a search comes to
    where its sequence goes on (`publish_along`), when another goes on alike, before it leaves a window, and when
    its sequence ends. One pass then does all that the sequence has, which costs a fraction of as many single ones,
    and nobody can tell the difference: what is found is found as if all had been published when they were full.
    """

    def __init__(
        self, cache: PrefixCache, references: References, tables: list[Int32], block_size: int, windowed: list[int]
    ) -> None:
        """windowed: the groups that have a window."""
        self._cache = cache
        self._references = references
        self._tables = tables
        self._size = block_size
        self._windowed = windowed
        self.backlog = Backlog()

    def postpone(self, blocks: SequenceBlocks, tail: bool = False) -> None:
        """A sequence that does not wait has computed tokens: full blocks without a node wait, with `tail` also the
        beginning of one that is not full, unless there may be something equal already."""
        tokens = blocks.computed
        if len(tokens) - len(blocks.nodes) * self._size < (1 if tail else self._size):
            return
        blocks.tail = tail
        place = self.backlog.place(blocks, tokens)
        other = self.backlog.at(place)
        node = self._cache.index.at(place)
        if other is None and (node == NONE or node == self._node(blocks, len(blocks.nodes))):
            self.backlog.add(place, blocks)
            return
        if other is not None:
            self.publish(other)
        self.publish(blocks)

    def _node(self, blocks: SequenceBlocks, column: int) -> int:
        """The node that a sequence's block of a column has already, for its beginning."""
        for group, node_of in enumerate(self._cache.node_of):
            if blocks.starts[group] <= column:
                return node_of[self._tables[group].item(blocks.row, column)]
        return NONE

    def publish_along(self, key: CacheKey, nodes: list[int], tokens: Int64) -> bool:
        """Publish what goes on, as `tokens` do, from a chain of `nodes`; whether there was anything."""
        namespace = self._cache.namespaces.find(key)
        if namespace is None:
            return False
        waiting = self.backlog.along(namespace.root, nodes, tokens, self._size)
        for blocks in waiting:
            self.publish(blocks)
        return bool(waiting)

    def publish(self, blocks: SequenceBlocks, tail: bool = False) -> None:
        """Make the nodes of all full blocks of a sequence, with `tail` also of the beginning of one that is not."""
        tail |= blocks.tail
        blocks.tail = False
        self.backlog.discard(blocks)
        cache, nodes, namespace, tokens = self._cache, blocks.nodes, blocks.namespace, blocks.computed
        size = self._size
        first, full = len(nodes), len(tokens) // size
        if first < full:
            pieces = tokens[first * size : full * size].reshape(-1, size)
            digests = blocks.chain.blocks(tokens, first, full)
            held = self._held(blocks, first, full)
            while (place := len(nodes) - first) < len(digests):
                if cache.settle(namespace, nodes, pieces, digests, held, place):
                    continue
                parent = nodes[-1] if nodes else namespace.root
                node = cache.join(parent, pieces[place], digests[place], held, place)
                if node == NONE:
                    blocks.cacheable = False
                    return
                self._use(blocks, first + place, held, place, node)
                nodes.append(node)
        if tail and len(tokens) % size:
            parent = nodes[-1] if nodes else namespace.root
            cache.settle_tail(namespace, parent, tokens[full * size :], self._held(blocks, full, full + 1), 0)

    def _use(self, blocks: SequenceBlocks, column: int, held: Held, place: int, node: int) -> None:
        """Have a sequence use the blocks of a node instead of its own."""
        for group, own in enumerate(held):
            block = own[place]
            shared = self._cache.index.blocks[group][node]
            if block != shared and block != NONE:
                self._references.hold(group, [shared])
                self._tables[group][blocks.row, column] = shared
                self._references.drop(group, [block])

    def _held(self, blocks: SequenceBlocks, first: int, end: int) -> Held:
        """The memory of its columns `first` to `end` - 1."""
        held = [table[blocks.row, first:end].tolist() for table in self._tables]
        for group in self._windowed:
            for column in range(first, min(blocks.starts[group], end)):
                held[group][column - first] = NONE
        return held
