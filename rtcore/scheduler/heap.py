"""KeyedHeap: a priority queue from which any item can be taken."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

_SMALLEST_REBUILD = 64


class KeyedHeap(Generic[Item]):
    """Items by key, the smallest first, equal keys in the order in which they were pushed.

    Items are hashable and at most once in the heap. Push, pop and discard take logarithmic time: a discarded
    entry stays until it surfaces, or until such entries are the majority and are swept out together.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Item]] = []
        self._tickets: dict[Item, int] = {}
        self._issued = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Item]:
        """The items, in no particular order."""
        return iter(self._tickets)

    def push(self, key: Any, item: Item) -> None:
        """Add an item, or give one that is there another key."""
        self._issued += 1
        self._tickets[item] = self._issued
        heapq.heappush(self._entries, (key, self._issued, item))
        if len(self._entries) > _SMALLEST_REBUILD + 2 * len(self._tickets):
            self._entries = [entry for entry in self._entries if self._tickets.get(entry[2]) == entry[1]]
            heapq.heapify(self._entries)

    def first(self) -> tuple[Any, Item] | None:
        """Key and item of the smallest key, None when the heap is empty."""
        while self._entries:
            key, ticket, item = self._entries[0]
            if self._tickets.get(item) == ticket:
                return key, item
            heapq.heappop(self._entries)
        return None

    def discard(self, item: Item) -> None:
        """Take an item out; nothing happens when it is not there."""
        self._tickets.pop(item, None)
