"""LinkedLists: many doubly linked lists over one range of small integers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

_ABSENT = -1


class LinkedLists:
    """Lists of the items 0 to capacity - 1; an item is in one list at most. Every operation takes constant time.

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

    def append(self, which: int, item: int) -> None:
        """Put an item that is in no list at the end of one."""
        sentinel = self._capacity + which
        following, previous = self._next, self._previous
        last = previous[sentinel]
        following[last] = item
        previous[item] = last
        following[item] = sentinel
        previous[sentinel] = item
        self._list[item] = which
        self._sizes[which] += 1

    def remove(self, item: int) -> None:
        """Take an item out of its list; nothing happens when it is in none."""
        which = self._list[item]
        if which == _ABSENT:
            return
        following, previous = self._next, self._previous
        before, after = previous[item], following[item]
        following[before] = after
        previous[after] = before
        self._list[item] = _ABSENT
        self._sizes[which] -= 1

    def items(self, which: int) -> Iterator[int]:
        """The items of a list in order; the list must not change meanwhile."""
        item = self.first(which)
        while item != _ABSENT:
            yield item
            following = self._next[item]
            item = following if following < self._capacity else _ABSENT
