"""RowBuilder: the rows that a step chooses or scores tokens for, as arrays of the sample graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.sample_columns import NEUTRAL_SETTINGS, NO_MASK, NOT_FORCED, Number
from rtcore.executor.sample_arrays import Ids, SampleInputs, Uint32
from rtcore.scheduler.base import Work
from rtcore.sequence import Sequence

_SETTINGS = len(NEUTRAL_SETTINGS)


@dataclass(slots=True)
class Row:
    """A row of logits. drafts: those between the sequence's tokens and the one to choose. forced: the token to
    score instead of choosing one, -1 for none."""

    sequence: Sequence
    drafts: tuple[int, ...] = ()
    forced: int = NOT_FORCED

    @property
    def processed(self) -> bool:
        """Whether processors of the user's own choose here, which they do not where a prompt is only scored."""
        return self.forced == NOT_FORCED and bool(self.sequence.decoding.processors)


def rows_of(works: list[Work]) -> list[Row]:
    """The rows of a step, in the order of its logit rows."""
    rows: list[Row] = []
    for work in works:
        sequence = work.sequence
        if scored := work.scored:
            # The last token of the chunk comes before position `end`, and so on backwards.
            end = min(sequence.computed + work.tokens, sequence.prompt_length - 1) + 1
            rows += [Row(sequence, forced=token) for token in sequence.tokens[end - scored : end].tolist()]
        if work.samples:
            rows += [Row(sequence, work.drafts[:count]) for count in range(len(work.drafts) + 1)]
    return rows


def decoding(works: list[Work]) -> list[Sequence]:
    """The sequences of works that all do no more than choose the token after their newest one; else none."""
    sequences = [work.sequence for work in works if work.tokens == 1 and work.samples]
    return sequences if len(sequences) == len(works) else []


class RowBuilder:
    """Builds SampleInputs for a vocabulary. What no row asks for becomes an empty array."""

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._no_masks = np.zeros((0, self._words), np.uint32)
        self._all = np.full(self._words, 0xFFFFFFFF, np.uint32)

    def build(self, rows: list[Row]) -> SampleInputs:
        """The arrays of `rows`, with masks for all that have one; what a grammar allows is still to be put in."""
        masks: list[Uint32] = []
        settings, numbers = [], []
        tokens = _Lists(np.int32, np.int32)
        bias = _Lists(np.int32, np.float32)
        for row in rows:
            state = row.sequence.decoding
            if row.forced != NOT_FORCED:
                settings.append(NEUTRAL_SETTINGS)
                numbers.append((0, 0, 0, state.prompt_logprobs, row.forced, NO_MASK))
                tokens.skip()
                bias.skip()
                continue
            length = row.sequence.length + len(row.drafts)
            mask = NO_MASK
            if state.masked:
                mask = len(masks)
                masks.append(self._mask(row))
            settings.append(state.settings)
            numbers.append((state.seed, length, state.top_k, state.logprobs, NOT_FORCED, mask))
            if state.counts is None:
                tokens.skip()
            else:
                tokens.add(*state.counts.after(row.drafts))
            if state.plain:
                bias.skip()
            else:
                bias.add(*state.bias(length, row.drafts))
        token_start, token_ids, token_counts = tokens.arrays()
        bias_start, bias_ids, bias_values = bias.arrays()
        return SampleInputs(
            settings=np.array(settings, np.float32).reshape(-1, _SETTINGS),
            numbers=np.array(numbers, np.int64).reshape(-1, len(Number)),
            token_start=token_start,
            token_ids=token_ids,
            token_counts=token_counts,
            bias_start=bias_start,
            bias_ids=bias_ids,
            bias_values=bias_values,
            masks=np.stack(masks) if masks else self._no_masks,
            pending=_pending(rows),
        )

    @staticmethod
    def repeatable(rows: list[Row]) -> bool:
        """Whether the arrays of rows without drafts stay the same, but for positions, as their sequences grow."""
        states = [row.sequence.decoding for row in rows]
        return all(
            state.plain and state.counts is None and not (state.masked or state.scores_prompt) for state in states
        )

    def _mask(self, row: Row) -> Uint32:
        state = row.sequence.decoding
        if state.allowed is not None and state.words is None:
            flags = np.zeros(32 * self._words, np.uint8)
            flags[list(state.allowed)] = 1
            state.words = np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)
        return self._all if state.words is None else state.words


def _pending(rows: list[Row]) -> Ids | None:
    """Of rows whose tokens are counted, where the newest one is to come from."""
    sources = [-1 if row.sequence.decoding.counts is None else row.sequence.source for row in rows]
    return np.array(sources, np.int32) if any(source >= 0 for source in sources) else None


class _Lists:
    """Pairs of arrays, one a row, and where each row's begin."""

    def __init__(self, first: type[np.generic], second: type[np.generic]) -> None:
        self._types = first, second
        self._ends = [0]
        self._parts: tuple[list[NDArray[Any]], list[NDArray[Any]]] = [], []

    def skip(self) -> None:
        self._ends.append(self._ends[-1])

    def add(self, first: NDArray[Any], second: NDArray[Any]) -> None:
        self._ends.append(self._ends[-1] + len(first))
        self._parts[0].append(first)
        self._parts[1].append(second)

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
        """starts int32 [rows + 1], and both arrays of all rows together; where all are empty, the same objects."""
        if not self._parts[0]:
            return _empty(len(self._ends), self._types)
        first, second = (np.concatenate(parts) for parts in self._parts)
        return np.array(self._ends, np.int32), first, second


@lru_cache(maxsize=1024)
def _empty(
    starts: int, types: tuple[type[np.generic], type[np.generic]]
) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
    return np.zeros(starts, np.int32), np.zeros(0, types[0]), np.zeros(0, types[1])
