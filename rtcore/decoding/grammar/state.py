"""GrammarState: where one sequence is in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.errors import InvalidRequest
from rtcore.decoding.grammar.source import shorten
from rtcore.decoding.grammar.spec import StructuredOutputs

Words = NDArray[np.uint32]

ALL = np.uint32(0xFFFFFFFF)


class GrammarState:
    """Follows the tokens that a sequence was given, and says which may come next.

    It only ever moves on by tokens that are certain; for drafts it looks ahead and comes back, so nothing has to
    be undone when a step fails, a draft is refused or the sequence is preempted. One thread at a time.

    Attributes: accepted: how many generated tokens it has followed. error: why the sequence cannot go on.
    """

    def __init__(self, matcher: Any, spec: StructuredOutputs, stop_ids: frozenset[int], vocab_size: int) -> None:
        """matcher: an LLMatcher of its own, at the beginning. stop_ids: ids of the model that end the sequence."""
        self.accepted = 0
        self.error: InvalidRequest | None = None
        self._matcher = matcher
        self._spec = spec
        self.words = -(-vocab_size // 32)
        self._stop_ids = stop_ids
        self._stops = _mask_of(stop_ids, self.words)

    def accept(self, tokens: Sequence[int]) -> None:
        """Follow tokens that were generated after those accepted before. Sets `error` if the grammar ends here."""
        if self.error is None and tokens and not self._matcher.consume_tokens(list(tokens)):
            self.fail(shorten(self._matcher.get_error()))
        self.accepted += len(tokens)

    def valid(self, drafts: Sequence[int]) -> int:
        """How many of the drafts, from the first on, the grammar allows."""
        return 0 if self.error is not None else int(self._matcher.validate_tokens(list(drafts)))

    def masks(self, drafts: Sequence[int], own_stops: frozenset[int], held: int) -> Words:
        """uint32 [len(drafts) + 1, words]: the tokens that may come next, and after each further draft.

        Bit i % 32 of word i // 32 is token i. Ids that end a sequence are allowed where the grammar may end, and
        nowhere else; own_stops, those that the request named itself, are then allowed too. held: in so many rows
        they are held back, as long as the grammar lets anything else come. Rows after a draft that the grammar
        does not allow, or that ends it, allow nothing. Where the sequence cannot go on, the first row allows all.
        """
        rows = np.zeros((len(drafts) + 1, self.words), np.uint32)
        own = _mask_of(own_stops, self.words) if own_stops else None
        self._fill(self._matcher, rows[0], own, held > 0)
        if self._matcher.is_error():
            self.fail(shorten(self._matcher.get_error()))
        if self.error is not None:
            rows[0] = ALL
            return rows
        self._look_ahead(rows, drafts, own, held)
        return rows

    def _look_ahead(self, rows: Words, drafts: Sequence[int], own: Words | None, held: int) -> None:
        """Fill the rows after drafts, with a matcher whose errors do not matter to the sequence."""
        going = next((n for n, token in enumerate(drafts) if token in self._stop_ids), len(drafts))
        valid = self.valid(drafts[:going]) if going else 0
        ahead = self._matcher.deep_copy() if valid else self._matcher
        for number in range(1, valid + 1):
            ahead.consume_token(drafts[number - 1])
            self._fill(ahead, rows[number], own, number < held)
            if ahead.is_error():
                rows[number] = 0
                return

    def _fill(self, matcher: Any, row: Words, own: Words | None, held: bool) -> None:
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if (row & self._stops).any():
            self._end(row, own, held)

    def _end(self, row: Words, own: Words | None, held: bool) -> None:
        """The grammar may end: allow what ends the sequence, or only what does not."""
        if held:
            others = row & ~self._stops
            if others.any():
                row[:] = others
        elif own is not None:
            row |= own

    def fail(self, why: str) -> None:
        """The sequence cannot go on; the first reason stays."""
        if self.error is not None:
            return
        self.error = self._spec.refusal("The answer cannot go on in this grammar.", why=f"{why}.")


def _mask_of(ids: frozenset[int], words: int) -> Words:
    mask = np.zeros(words, np.uint32)
    for token in ids:
        if token < 32 * words:
            mask[token // 32] |= np.uint32(1 << (token % 32))
    return mask
