"""TokenCounts: which tokens a sequence holds, and how often each was generated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROOM = 64

Ids = NDArray[np.int32]


class TokenCounts:
    """The tokens of prompt and answer, each once; counting one takes constant time."""

    def __init__(self, prompt: NDArray[np.int64]) -> None:
        """prompt: its ids int64 [n], of which none counts as generated."""
        distinct = np.unique(prompt)
        self._size = len(distinct)
        self._ids = np.zeros(self._size + _ROOM, np.int32)
        self._counts = np.zeros(self._size + _ROOM, np.int32)
        self._ids[: self._size] = distinct
        self._places = {token: place for place, token in enumerate(distinct.tolist())}

    def add(self, token: int) -> None:
        """A token was generated."""
        place = self._places.setdefault(token, self._size)
        if place == self._size:
            if self._size == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1

    def after(self, drafts: Sequence[int] = ()) -> tuple[Ids, Ids]:
        """Ids and counts int32 [n] as they will be after `drafts`; without any, views that `add` changes."""
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        if not drafts:
            return ids, counts
        counts = counts.copy()
        new: dict[int, int] = {}
        for token in drafts:
            place = self._places.get(token)
            if place is None:
                new[token] = new.get(token, 0) + 1
            else:
                counts[place] += 1
        more_ids, more_counts = np.array([*new], np.int32), np.array([*new.values()], np.int32)
        return np.concatenate([ids, more_ids]), np.concatenate([counts, more_counts])
