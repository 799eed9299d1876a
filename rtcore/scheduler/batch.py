"""BatchBuilder: the packed arrays of one step, written into memory that is reserved once."""

from __future__ import annotations

import numpy as np

from rtcore.executor.base import Int32, StepInputs
from rtcore.scheduler.base import Work

_SMALLEST_BUCKET = 128


def context_bucket(length: int) -> int:
    """The bucket that plan[3] rounds the longest context to: powers of two, at least 128."""
    return max(_SMALLEST_BUCKET, 1 << (length - 1).bit_length())


class BatchBuilder:
    """Builds StepInputs. The arrays of a step are views that the next `build` overwrites."""

    def __init__(
        self, *, max_tokens: int, max_sequences: int, block_size: int, groups: int, max_blocks: int
    ) -> None:
        """max_tokens and max_sequences bound one step; max_blocks bounds the table of one sequence."""
        self._block_size = block_size
        self._input_ids = np.zeros(max_tokens, np.int64)
        self._positions = np.zeros(max_tokens, np.int64)
        self._query_start = np.zeros(max_sequences + 1, np.int32)
        self._seq_lens = np.zeros(max_sequences, np.int32)
        self._tables = [np.zeros(max_sequences * max_blocks, np.int32) for _ in range(groups)]
        self._slots = [np.zeros(max_tokens, np.int32) for _ in range(groups)]
        self._plan = np.zeros(6, np.int32)
        self._rows = np.arange(max_sequences)

    def build(self, works: list[Work]) -> StepInputs:
        """The inputs of a step, for works that start with those of one token each.

        logit_rows lists the last row of every work that samples, in order; when none does, it holds row 0, so
        that the head never runs on nothing.
        """
        rows = len(works)
        starts = [0]
        lengths: list[int] = []
        logit_rows: list[int] = []
        single: list[int] = []
        token = longest_query = 0
        for work in works:
            sequence, tokens = work.sequence, work.tokens
            begin = sequence.computed
            end = begin + tokens
            if tokens == 1:
                single.append(sequence.tokens.item(begin))
            else:
                self._input_ids[token : token + tokens] = sequence.tokens[begin:end]
                self._positions[token : token + tokens] = np.arange(begin, end)
                longest_query = max(longest_query, tokens)
            token += tokens
            starts.append(token)
            lengths.append(end)
            if end == sequence.length:
                logit_rows.append(token - 1)
        decode_rows = len(single)
        longest_query = longest_query or 1
        longest_context = max(lengths)
        self._query_start[: rows + 1] = starts
        self._seq_lens[:rows] = lengths
        self._input_ids[:decode_rows] = single
        self._positions[:decode_rows] = self._seq_lens[:decode_rows]
        self._positions[:decode_rows] -= 1
        positions = self._positions[:token]
        query_start = self._query_start[: rows + 1]
        tables = [self._table(group, works, longest_context) for group in range(len(self._tables))]
        self._plan[:] = (
            decode_rows,
            rows - decode_rows,
            longest_query,
            context_bucket(longest_context),
            token,
            rows,
        )
        return StepInputs(
            input_ids=self._input_ids[:token],
            positions=positions,
            query_start=query_start,
            seq_lens=self._seq_lens[:rows],
            logit_rows=np.array(logit_rows or [0], np.int64),
            block_tables=tables,
            slot_mapping=self._slot_mapping(tables, query_start, token, rows),
            plan=self._plan,
        )

    def _table(self, group: int, works: list[Work], longest_context: int) -> Int32:
        """Block tables int32 [R, M] of a group; M covers the longest context, shorter rows end in zeros."""
        width = -(-longest_context // self._block_size)
        table = self._tables[group][: len(works) * width].reshape(len(works), width)
        table.fill(0)
        for row, work in enumerate(works):
            blocks = work.sequence.blocks
            if blocks is not None:
                count = min(blocks.count, width)
                table[row, :count] = blocks.tables[group][:count]
        return table

    def _slot_mapping(self, tables: list[Int32], query_start: Int32, tokens: int, rows: int) -> list[Int32]:
        """For each group the slot int32 [T] of every token: its block times the block size plus its offset."""
        positions = self._positions[:tokens]
        row_of = self._rows[:rows] if tokens == rows else np.repeat(self._rows[:rows], np.diff(query_start))
        index, offset = np.divmod(positions, self._block_size)
        mapping = []
        for group, table in enumerate(tables):
            slots = self._slots[group][:tokens]
            np.multiply(table[row_of, index], self._block_size, out=slots)
            slots += offset.astype(np.int32)
            mapping.append(slots)
        return mapping
