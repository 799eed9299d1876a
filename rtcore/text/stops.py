"""Stop strings, matched over text and not over tokens.

An Aho-Corasick automaton (Aho and Corasick, 1975) over all stops: its state is the longest suffix of the text
that begins some stop, which is exactly what must be held back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(slots=True)
class _Node:
    """A prefix of some stop. longest: the longest stop that ends here, itself or as a suffix of the prefix."""

    depth: int
    next: dict[str, _Node] = field(default_factory=dict)
    shorter: _Node | None = None
    longest: str | None = None


@lru_cache(maxsize=16)  # of the longest stops allowed each takes some megabytes
def _automaton(stops: tuple[str, ...]) -> _Node:
    root = _Node(0)
    for stop in stops:
        node = root
        for character in stop:
            node = node.next.setdefault(character, _Node(node.depth + 1))
        node.longest = stop
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for character, child in node.next.items():
            child.shorter = _step(node.shorter, character, root) if node.shorter else root
            if child.longest is None:
                child.longest = child.shorter.longest
            queue.append(child)
    return root


def _step(node: _Node | None, character: str, root: _Node) -> _Node:
    """The longest suffix of the prefix `node` and `character` that is itself a prefix of a stop."""
    while node is not None:
        if (found := node.next.get(character)) is not None:
            return found
        node = node.shorter
    return root


class StopMatcher:
    """Passes text through up to the first stop.

    The stop whose end comes first wins; of several that end at one character, the longest. `matched` is that
    stop, after which nothing more comes out.
    """

    def __init__(self, stops: tuple[str, ...], include_in_output: bool = False) -> None:
        self.matched: str | None = None
        self._include = include_in_output
        self._root = _automaton(stops)
        self._node = self._root
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that can be shown by now: all but the longest suffix that could still become a stop."""
        if self.matched is not None:
            return ""
        if not self._root.next:
            return text
        node, root = self._node, self._root
        whole = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            node = _step(node, character, root)
            if node.longest is not None:
                self.matched = node.longest
                self._held = ""
                return whole[: end if self._include else end - len(node.longest)]
        self._node = node
        shown = len(whole) - node.depth
        self._held = whole[shown:]
        return whole[:shown]

    def finish(self) -> str:
        """What was held back: no more text comes, so it is no stop."""
        held, self._held = self._held, ""
        self._node = self._root
        return held
