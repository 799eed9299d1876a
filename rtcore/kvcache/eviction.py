"""EvictionOrder: which cached node goes first when its memory is needed."""

from __future__ import annotations

from rtcore.kvcache.linked import LinkedLists

_PROBATION, _PROTECTED = 0, 1


class EvictionOrder:
    """Segmented LRU (Karedla, Love, Wherry, "Caching Strategies to Improve Disk System Performance", IEEE
    Computer 27(3), 1994) over the nodes that no sequence uses.

    A node that was hit since it came in, or since it lost its protection, waits in the protected segment; the
    others wait in probation, from whose old end nodes are evicted. When the protected segment is larger than
    its share, its oldest node goes back to the young end of probation. So one-time prompts cannot push out
    prefixes that come again, and a prefix that stopped coming leaves in time.

    Sequences give their nodes back last block first, and a hit on a node is a hit on all before it in its
    chain, so in both segments and across them a node always stands before its parent: leaves go before roots
    although the order knows no chains.
    """

    def __init__(self, capacity: int, protected_share: float) -> None:
        """capacity: nodes are 0 to capacity - 1; protected_share: of all nodes in the order."""
        self._lists = LinkedLists(capacity, lists=2)
        self._share = protected_share

    def __len__(self) -> int:
        return self._lists.size(_PROBATION) + self._lists.size(_PROTECTED)

    def __contains__(self, node: int) -> bool:
        return self._lists.list_of(node) >= 0

    def add(self, nodes: list[int], hits: bytearray) -> None:
        """Put nodes at the young end, leaves first. hits[node]: how often each was hit; set to 0 for nodes that
        lose their protection for them."""
        lists = self._lists
        hit = [node for node in nodes if hits[node]]
        if not hit:
            lists.extend(_PROBATION, nodes)
            return
        lists.extend(_PROBATION, [node for node in nodes if not hits[node]])
        lists.extend(_PROTECTED, hit)
        excess = lists.size(_PROTECTED) - int(self._share * len(self))
        if excess > 0:
            demoted = lists.pop(_PROTECTED, excess)
            lists.extend(_PROBATION, demoted)
            for node in demoted:
                hits[node] = 0

    def remove(self, nodes: list[int]) -> None:
        self._lists.remove(nodes)

    def pop(self, count: int) -> list[int]:
        """Take out the `count` nodes to evict first, in order; all nodes when there are fewer."""
        nodes = self._lists.pop(_PROBATION, count)
        if len(nodes) < count:
            nodes += self._lists.pop(_PROTECTED, count - len(nodes))
        return nodes

    def nodes(self) -> list[int]:
        """All nodes, the first to go first."""
        return [*self._lists.items(_PROBATION), *self._lists.items(_PROTECTED)]
