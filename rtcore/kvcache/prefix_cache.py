"""PrefixCache: the blocks that stay after their sequence, for the next one that begins alike."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

from rtcore.executor.base import Int64
from rtcore.kvcache.block_pool import BlockPool
from rtcore.kvcache.counters import CacheCounters
from rtcore.kvcache.eviction import EvictionOrder
from rtcore.kvcache.hash_chain import HashChain
from rtcore.kvcache.linked import LinkedLists
from rtcore.kvcache.match import Match
from rtcore.kvcache.namespaces import Namespace, Namespaces
from rtcore.kvcache.policy import CachePolicy
from rtcore.kvcache.prefix_index import NONE, PrefixIndex

_STRIDE = 64
"""Blocks that are hashed at a time while a cached beginning is looked for."""

Held = list[list[int]]
"""The memory of consecutive columns of a sequence: the blocks of every group, NONE where one was given back."""


class PrefixCache:
    """Decides what stays cached, finds it, and frees it when its memory is needed, its time is over, or its
    namespace holds more than its share.

    A block is idle when its pool counts no reference and a node has it. In groups without a window the blocks
    of a node are always referenced together, so the first such group, the anchor, tells whether a node is
    idle; it must be the last to be given back (`release_order`). Blocks of groups with a window are idle on
    their own, as sequences move on from them: they are evicted by their own order of last use, and a hit needs
    only those that its window still reaches.

    Where all groups have a window there is no anchor, and a chain keeps the nodes of blocks that are gone while it
    goes on, so it may have more nodes than blocks. There are as many nodes more as running sequences can need, and
    beyond that those whose blocks were idle first make room.
    """

    def __init__(
        self,
        pools: list[BlockPool],
        block_size: int,
        windows: list[int],
        policy: CachePolicy,
        clock: Callable[[], float],
        running: int,
    ) -> None:
        """running: the blocks of a group that all running sequences together can have had, their windows aside."""
        blocks = sum(pool.count for pool in pools)
        capacity = (blocks if 0 in windows else blocks + running) if policy.enabled else 0
        self._pools = pools
        self._block_size = block_size
        self._windows = windows
        self._policy = policy
        self._clock = clock
        self._anchor = windows.index(0) if 0 in windows else NONE
        self.release_order = sorted(range(len(pools)), key=lambda group: group == self._anchor)
        self._idle = LinkedLists(capacity)
        self._order = EvictionOrder(capacity, policy.protected_share)
        self._window_idle = {group: LinkedLists(capacity, lists=1) for group, size in enumerate(windows) if size}
        self._quota = policy.tenant_share * blocks
        self.node_of = [array("i", [NONE]) * pool.count for pool in pools]
        self.namespaces = Namespaces(self._idle)
        self.index = PrefixIndex(capacity, block_size, len(pools), self.namespaces)
        self.counters = CacheCounters()

    def evictable(self, group: int) -> int:
        """Blocks of a group that nobody references and that could be freed."""
        idle = self._window_idle.get(group)
        return len(self._order) if idle is None else idle.size(0)

    def idle_nodes(self) -> list[int]:
        """Nodes that no sequence uses, the first to be evicted first."""
        return self._order.nodes()

    def walk(self, chain: HashChain, tokens: Int64) -> list[int]:
        """The full nodes of the longest cached beginning of `tokens`, compared token by token."""
        namespace = self.namespaces.find(chain.key)
        if namespace is None:
            return []
        nodes: list[int] = []
        count = len(tokens) // self._block_size
        # In strides, so that a long prompt without a cached beginning is not hashed to its end.
        for first in range(0, count, _STRIDE):
            end = min(first + _STRIDE, count)
            nodes += self.index.chain(nodes[-1] if nodes else namespace.root, chain.blocks(tokens, first, end))
            if len(nodes) < end:
                break
        del nodes[self.index.confirmed(nodes, tokens) :]
        return nodes

    def match(self, chain: HashChain, tokens: Int64, nodes: list[int]) -> Match:
        """The longest cached beginning of `tokens`, of which the full `nodes` were found."""
        namespace = self.namespaces.find(chain.key)
        if namespace is None:
            return Match([])
        index, size = self.index, self._block_size
        parent = nodes[-1] if nodes else namespace.root
        # A whole block is found by its digest or not at all: a tail ends before its block does.
        rest = tokens[len(nodes) * size : (len(nodes) + 1) * size - 1]
        tail = index.beginning(parent, int(rest[0])) if len(rest) else NONE
        common = index.common(tail, rest) if tail != NONE else 0
        match = Match(nodes, tail, common, len(nodes) * size + common)
        if self._window_idle:
            self._shorten(match)
        return match

    def _shorten(self, match: Match) -> None:
        """Cut a match back until every block that its windows reach is still there."""
        while match.tokens:
            chain = [*match.nodes, match.tail] if match.tail_tokens else match.nodes
            missing = max(
                (
                    position
                    for group in self._window_idle
                    for position in range(self.first_needed(group, match.tokens), len(chain))
                    if self.index.blocks[group][chain[position]] == NONE
                ),
                default=NONE,
            )
            if missing == NONE:
                return
            del match.nodes[missing:]
            match.tail, match.tail_tokens, match.tokens = NONE, 0, missing * self._block_size

    def first_needed(self, group: int, computed: int) -> int:
        """The first block of a group that a query after `computed` tokens sees: with a window, kv > q - W.

        The last full block counts as needed however short the window is: chains continue from it.
        """
        window = self._windows[group]
        if not window:
            return 0
        return max(0, min((computed - window + 1) // self._block_size, computed // self._block_size - 1))

    def settle(
        self, namespace: Namespace, nodes: list[int], pieces: Int64, digests: list[int], held: Held, begin: int
    ) -> int:
        """Add the nodes of consecutive full blocks, from number `begin` on, to the chain `nodes`; returns how many.

        pieces: int64 [blocks, block_size], their tokens. held: the memory of all of them. Ends before a block that
        cannot be cached: there is no room for a node, or one with its digest is there already; `join` says whether
        that one can be used instead.
        """
        index = self.index
        place = begin
        while place < len(digests):
            own = self._own(held, place)
            if own != NONE and index.find(digests[place]) == NONE:
                index.extend(own, pieces[place], digests[place])
                added = [own]
            else:
                end = self._new_until(digests, held, place)
                if end == place:
                    break
                parent = nodes[-1] if nodes else namespace.root
                self._make_room(end - place, parent)
                added = index.insert(namespace, parent, pieces[place:end], digests[place:end])
                self._bind(added, held, place)
                if not added:
                    break
            nodes += added
            place += len(added)
        return place - begin

    def _new_until(self, digests: list[int], held: Held, begin: int) -> int:
        """The end of the blocks from number `begin` on that are new: without a node, and with a digest that neither
        a node nor one before it has."""
        if not self._window_idle and self.index.lacks(digests[begin:]):
            pairs = zip(held, self.node_of, strict=True)
            if all(node_of[block] == NONE for column, node_of in pairs for block in column[begin:]):
                return len(digests)
        seen: set[int] = set()
        for place in range(begin, len(digests)):
            digest = digests[place]
            if digest in seen or self.index.find(digest) != NONE or self._own(held, place) != NONE:
                return place
            seen.add(digest)
        return len(digests)

    def join(self, parent: int, tokens: Int64, digest: int, held: Held, place: int) -> int:
        """The older node of the same tokens, whose blocks are to be used instead of those that are `held`.

        NONE if there is none, which can be because another block has the digest.
        """
        index = self.index
        found = index.find(digest)
        if found == NONE:
            return NONE
        if not index.holds(found, parent, tokens):
            self.counters.collisions += 1
            return NONE
        own = self._own(held, place)
        if own != NONE:
            self._disown(own)
        for group, column in enumerate(held):
            block = column[place]
            if block != NONE and index.blocks[group][found] == NONE:
                index.blocks[group][found] = block
                self.node_of[group][block] = found
        return found

    def settle_tail(self, namespace: Namespace, parent: int, tokens: Int64, held: Held, place: int) -> None:
        """Make the beginning of a block that is not full yet known, unless an equal or longer one is."""
        index = self.index
        own = self._own(held, place)
        if own != NONE:
            if index.filled[own] < len(tokens):
                index.extend(own, tokens, None)
            return
        rival = index.beginning(parent, int(tokens[0]))
        if rival != NONE:
            if index.common(rival, tokens) == len(tokens):
                return
            if index.filled[rival] < self._block_size and rival in self._order:
                self._remove([rival], "replaced")
        self._make_room(1, parent)
        self._bind(index.insert_beginning(namespace, parent, tokens), held, place)

    def _make_room(self, count: int, parent: int) -> None:
        """Have the index hold `count` nodes more, if idle blocks can make room; `parent`, a node or root, stays."""
        index = self.index
        if index.room >= count or self._anchor != NONE:
            return
        if parent >= 0:
            index.children[parent] += 1  # what is about to follow it keeps it already
        while index.room < count and (idle := [g for g, nodes in self._window_idle.items() if nodes.size(0)]):
            firsts = {group: self._window_idle[group].first(0) for group in idle}
            group = min(idle, key=lambda group: index.last_use[firsts[group]])
            self._lose(group, firsts[group], "capacity")
        if parent >= 0:
            index.children[parent] -= 1

    def _own(self, held: Held, place: int) -> int:
        """The node that the blocks of one column already belong to."""
        for column, node_of in zip(held, self.node_of, strict=True):
            block = column[place]
            if block != NONE and node_of[block] != NONE:
                return node_of[block]
        return NONE

    def _bind(self, nodes: list[int], held: Held, begin: int) -> None:
        """Give new nodes the blocks that are `held` from number `begin` on."""
        for column, own, node_of in zip(held, self.index.blocks, self.node_of, strict=True):
            for node, block in zip(nodes, column[begin:], strict=False):
                own[node] = block
                if block != NONE:
                    node_of[block] = node

    def _unbind(self, group: int, node: int) -> int:
        """Take a node's block of a group from it; returns the block, NONE if it had none."""
        block = self.index.blocks[group][node]
        if block != NONE:
            self.index.blocks[group][node] = NONE
            self.node_of[group][block] = NONE
        return block

    def _disown(self, node: int) -> None:
        """Forget a node whose blocks a sequence keeps; idle ones of its windows become free."""
        for group, pool in enumerate(self._pools):
            block = self._unbind(group, node)
            if block != NONE and not pool.references[block]:
                self._window_idle[group].remove([node])
                pool.give_back([block])
        self.index.remove([node])

    def retain(self, group: int, nodes: list[int]) -> None:
        """Keep the blocks of nodes of one chain, leaves first, that lost their last reference."""
        index = self.index
        if group == self._anchor or self._anchor == NONE:
            now, last_use = self._clock(), index.last_use
            for node in nodes:
                last_use[node] = now
        if group == self._anchor:
            self._order.add(nodes, index.hits)
            idle = index.namespace(nodes[0]).idle
            self._idle.extend(idle, nodes)
            excess = math.ceil(self._idle.size(idle) - self._quota)
            if excess > 0:
                self._remove(self._idle.oldest(idle, excess), "quota")
        elif group in self._window_idle:
            self._window_idle[group].extend(0, nodes)

    def revive(self, group: int, nodes: list[int]) -> None:
        """Blocks of nodes, which had no references, get one."""
        if group == self._anchor:
            self._order.remove(nodes)
            self._idle.remove(nodes)
        elif group in self._window_idle:
            self._window_idle[group].remove(nodes)

    def evict(self, group: int, count: int) -> None:
        """Free `count` blocks of a group; the caller has checked that as many are evictable."""
        idle = self._window_idle.get(group)
        if idle is None:
            self._forget(self._order.pop(count), "capacity")
        else:
            for node in idle.oldest(0, count):
                self._lose(group, node, "capacity")

    def expire(self) -> None:
        """Free what nobody used for the time to live."""
        limit = self._clock() - self._policy.ttl
        last_use = self.index.last_use
        for namespace in self.namespaces.all():
            while (node := self._idle.first(namespace.idle)) != NONE and last_use[node] < limit:
                self._remove([node], "expired")
        if self._anchor == NONE:
            for group, idle in self._window_idle.items():
                while (node := idle.first(0)) != NONE and last_use[node] < limit:
                    self._lose(group, node, "expired")

    def _lose(self, group: int, node: int, cause: str) -> None:
        """Free a node's idle block of a group with a window; without any block left, chains end before it."""
        self._window_idle[group].remove([node])
        self._pools[group].give_back([self._unbind(group, node)])
        self.counters.evictions[cause] += 1
        index = self.index
        while node >= 0 and not index.children[node] and all(column[node] == NONE for column in index.blocks):
            parent = index.parent[node]
            index.remove([node])
            node = parent

    def _remove(self, nodes: list[int], cause: str) -> None:
        """Free all blocks of idle nodes, leaves first, and forget them."""
        self._order.remove(nodes)
        self._forget(nodes, cause)

    def _forget(self, nodes: list[int], cause: str) -> None:
        """The same for nodes that are not in the order of eviction any more."""
        self._idle.remove(nodes)
        for group, pool in enumerate(self._pools):
            column, node_of = self.index.blocks[group], self.node_of[group]
            freed = []
            for node in nodes:
                block = column[node]
                if block != NONE:
                    column[node] = node_of[block] = NONE
                    freed.append(block)
            if group in self._window_idle:
                self._window_idle[group].remove(nodes)
            pool.give_back(freed)
        self.index.remove(nodes)
        self.counters.evictions[cause] += len(nodes)
