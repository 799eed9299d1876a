"""BatchBuilder: the packed arrays of one step, written into memory that is reserved once."""

from __future__ import annotations

import numpy as np

from rtcore.executor.base import Int32, StepInputs
from rtcore.scheduler.base import Work
from rtcore.sequence import held

_SMALLEST_BUCKET = 128


def context_bucket(length: int) -> int:
    """The bucket that plan[3] rounds the longest context to: powers of two, at least 128."""
    return max(_SMALLEST_BUCKET, 1 << (length - 1).bit_length())


class BatchBuilder:
    """Builds StepInputs. The arrays of a step that hold tokens are views that the next `build` overwrites."""

    def __init__(self, *, max_tokens: int, block_size: int, tables: list[Int32]) -> None:
        """max_tokens bounds one step; tables: of each cache group, int32 [sequences, columns]."""
        self._block_size = block_size
        self._tables = tables
        self._input_ids = np.zeros(max_tokens, np.int64)
        self._positions = np.zeros(max_tokens, np.int64)
        self._slots = [np.zeros(max_tokens, np.int32) for _ in tables]
        self._plan = np.zeros(6, np.int32)

    def build(self, works: list[Work]) -> StepInputs:
        """The inputs of a step, for works that start with those of one token each.

        logit_rows lists the last row of every work that samples, in order; when none does, it holds row 0, so
        that the head never runs on nothing.
        """
        sequences = [work.sequence for work in works]
        counts = [work.tokens for work in works]
        samples = [work.samples for work in works]
        begins = [sequence.computed for sequence in sequences]
        rows = [held(sequence).row for sequence in sequences]
        decode_rows = counts.count(1)
        singles = [
            sequence.last if last else sequence.tokens.item(sequence.computed)
            for sequence, last in zip(sequences[:decode_rows], samples[:decode_rows], strict=True)
        ]
        lengths = np.array(counts, np.int32)
        query_start = np.zeros(len(works) + 1, np.int32)
        np.cumsum(lengths, out=query_start[1:])
        first = np.array(begins, np.int64)
        seq_lens = (first + lengths).astype(np.int32)
        total, longest = int(query_start[-1]), int(seq_lens.max())
        self._input_ids[:decode_rows] = singles
        self._positions[:decode_rows] = first[:decode_rows]
        for row in range(decode_rows, len(works)):
            token, begin, end = int(query_start[row]), begins[row], begins[row] + counts[row]
            self._input_ids[token : token + counts[row]] = sequences[row].tokens[begin:end]
            self._positions[token : token + counts[row]] = np.arange(begin, end)
        width = -(-longest // self._block_size)
        picked = np.array(rows, np.int64)
        tables = [table[:, :width].take(picked, axis=0) for table in self._tables]
        self._plan[:] = (
            decode_rows,
            len(works) - decode_rows,
            max(counts),
            context_bucket(longest),
            total,
            len(works),
        )
        return StepInputs(
            input_ids=self._input_ids[:total],
            positions=self._positions[:total],
            query_start=query_start,
            seq_lens=seq_lens,
            logit_rows=(query_start[1:][samples] - 1).astype(np.int64) if any(samples) else np.zeros(1, np.int64),
            block_tables=tables,
            slot_mapping=self._slot_mapping(tables, lengths, total, len(works)),
            plan=self._plan,
        )

    def _slot_mapping(self, tables: list[Int32], lengths: Int32, tokens: int, rows: int) -> list[Int32]:
        """For each group the slot int32 [T] of every token: its block times the block size plus its offset."""
        row_of = np.arange(rows) if tokens == rows else np.repeat(np.arange(rows), lengths)
        index, offset = np.divmod(self._positions[:tokens], self._block_size)
        mapping = []
        for table, buffer in zip(tables, self._slots, strict=True):
            slots = buffer[:tokens]
            np.multiply(table[row_of, index], self._block_size, out=slots)
            np.add(slots, offset, out=slots, casting="unsafe")
            mapping.append(slots)
        return mapping
