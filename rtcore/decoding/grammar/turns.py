"""Turns: what several owners wait for, taken in turns."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Items in the order of their owners' turns: one of each owner, its oldest, then the next of each.

    An item may have several owners and is taken once. Used by any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: OrderedDict[str, OrderedDict[Item, None]] = OrderedDict()

    def put(self, owner: str, item: Item) -> None:
        """Add an item behind the owner's others; one that is there keeps its place."""
        with self._lock:
            self._owners.setdefault(owner, OrderedDict())[item] = None

    def take(self) -> Item | None:
        """The next item, which is nobody's from now on; None where there is none."""
        with self._lock:
            if not self._owners:
                return None
            owner, items = next(iter(self._owners.items()))
            item = next(iter(items))
            self._owners.move_to_end(owner)
            self._remove(item)
            return item

    def drop(self, item: Item) -> bool:
        """Remove an item; False where it was taken already."""
        with self._lock:
            return self._remove(item)

    def _remove(self, item: Item) -> bool:
        found = [owner for owner, items in self._owners.items() if item in items]
        for owner in found:
            del self._owners[owner][item]
            if not self._owners[owner]:
                del self._owners[owner]
        return bool(found)
