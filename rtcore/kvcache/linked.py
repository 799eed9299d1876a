"""LinkedLists: many doubly linked lists over one range of small integers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

_ABSENT = -1


class LinkedLists:
    """Lists of the items 0 to capacity - 1; an item is in one list at most. Every operation takes constant time
    for each item that it moves.

    The links lie in flat arrays: a million items cost 12 MB, and nothing for the garbage collector to visit.
    """

    def __init__(self, capacity: int, lists: int = 0) -> None:
        """lists: how many lists exist from the start; they are numbered from 0."""
        self._capacity = capacity
        self._next = array("i", [_ABSENT]) * capacity
        self._previous = array("i", [_ABSENT]) * capacity
        self._list = array("i", [_ABSENT]) * capacity
        self._sizes: list[int] = []
        for _ in range(lists):
            self.new()

    def new(self) -> int:
        """The number of a new, empty list."""
        sentinel = self._capacity + len(self._sizes)
        self._next.append(sentinel)
        self._previous.append(sentinel)
        self._sizes.append(0)
        return len(self._sizes) - 1

    def size(self, which: int) -> int:
        return self._sizes[which]

    def list_of(self, item: int) -> int:
        """The list that an item is in, -1 for none."""
        return self._list[item]

    def first(self, which: int) -> int:
        """The item that was appended first, -1 when the list is empty."""
        item = self._next[self._capacity + which]
        return item if item < self._capacity else _ABSENT

    def oldest(self, which: int, count: int) -> list[int]:
        """The `count` items that were appended first, in order; all items when there are fewer."""
        following, capacity = self._next, self._capacity
        found: list[int] = []
        item = following[capacity + which]
        while len(found) < count and item < capacity:
            found.append(item)
            item = following[item]
        return found

    def pop(self, which: int, count: int) -> list[int]:
        """Take the `count` items that were appended first out of their list; all items when there are fewer."""
        following, lists, capacity = self._next, self._list, self._capacity
        found: list[int] = []
        item = following[capacity + which]
        while len(found) < count and item < capacity:
            found.append(item)
            lists[item] = _ABSENT
            item = following[item]
        following[capacity + which] = item
        self._previous[item] = capacity + which
        self._sizes[which] -= len(found)
        return found

    def extend(self, which: int, items: list[int]) -> None:
        """Put items that are in no list at the end of one, in their order."""
        sentinel = self._capacity + which
        following, previous, lists = self._next, self._previous, self._list
        last = previous[sentinel]
        for item in items:
            following[last] = item
            previous[item] = last
            lists[item] = which
            last = item
        following[last] = sentinel
        previous[sentinel] = last
        self._sizes[which] += len(items)

    def remove(self, items: Iterable[int]) -> None:
        """Take items out of their lists; nothing happens to those that are in none."""
        following, previous, lists, sizes = self._next, self._previous, self._list, self._sizes
        # Items that stand one after the other leave together: their neighbours are joined once, at the end.
        before = after = _ABSENT
        for item in items:
            which = lists[item]
            if which == _ABSENT:
                continue
            lists[item] = _ABSENT
            sizes[which] -= 1
            if item != after:
                if after != _ABSENT:
                    following[before] = after
                    previous[after] = before
                before = previous[item]
            after = following[item]
        if after != _ABSENT:
            following[before] = after
            previous[after] = before

    def items(self, which: int) -> Iterator[int]:
        """The items of a list in order; the list must not change meanwhile."""
        item = self.first(which)
        while item != _ABSENT:
            yield item
            following = self._next[item]
            item = following if following < self._capacity else _ABSENT
