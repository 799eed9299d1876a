"""Namespaces: the cache keys in use, each with the root of its chains and the list of its idle nodes."""

from __future__ import annotations

from dataclasses import dataclass

from rtcore.kvcache.hash_chain import CacheKey
from rtcore.kvcache.linked import LinkedLists


@dataclass(slots=True, eq=False)
class Namespace:
    """The chains of one cache key.

    root: stands for the start of the chains where a node's parent would, below -1. idle: number of the list of
    its nodes that no sequence uses, the one used longest ago first. users: sequences and first nodes of chains that
    need it.
    """

    key: CacheKey
    root: int
    idle: int
    users: int = 0


class Namespaces:
    """Namespaces by key and by root. One that nobody needs is forgotten, and its number used again.

    by_root: all that are in use, and those that wait for another key.
    """

    def __init__(self, idle: LinkedLists) -> None:
        """idle: where each namespace gets a list."""
        self._idle = idle
        self._by_key: dict[CacheKey, Namespace] = {}
        self.by_root: dict[int, Namespace] = {}
        self._spare: list[Namespace] = []

    def find(self, key: CacheKey) -> Namespace | None:
        return self._by_key.get(key)

    def all(self) -> list[Namespace]:
        return list(self._by_key.values())

    def join(self, key: CacheKey) -> Namespace:
        """The namespace of a key, with one user more."""
        namespace = self._by_key.get(key)
        if namespace is None:
            if self._spare:
                namespace = self._spare.pop()
                namespace.key = key
            else:
                namespace = Namespace(key, -2 - len(self.by_root), self._idle.new())
                self.by_root[namespace.root] = namespace
            self._by_key[key] = namespace
        namespace.users += 1
        return namespace

    def leave(self, namespace: Namespace) -> None:
        """One user less."""
        namespace.users -= 1
        if not namespace.users:
            del self._by_key[namespace.key]
            self._spare.append(namespace)
