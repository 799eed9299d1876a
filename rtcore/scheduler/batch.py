"""BatchBuilder: the packed arrays of one step, written into memory that is reserved once."""

from __future__ import annotations

import numpy as np

from rtcore.executor.base import Int32, Int64, StepInputs
from rtcore.scheduler.base import Work, singles
from rtcore.sequence import Sequence, held

_SMALLEST_BUCKET = 128
_FEW = 32
"""Rows up to which arrays are written element by element."""


def context_bucket(length: int) -> int:
    """The bucket that plan[3] rounds the longest context to: powers of two, at least 128."""
    return max(_SMALLEST_BUCKET, 1 << (length - 1).bit_length())


class _Views:
    """The arrays of a step as memoryviews, and the block tables that they are copied from, each as one row.

    After a step has filled the caches with weights, each function of numpy that is called once takes longer than a
    few elements written by memoryview do.
    """

    def __init__(self, inputs: StepInputs, tables: list[Int32]) -> None:
        self.input_ids, self.positions, self.seq_lens = (
            inputs.input_ids.data,
            inputs.positions.data,
            inputs.seq_lens.data,
        )
        self.plan = inputs.plan.data
        self.groups = [
            (table.data, own.reshape(-1).data, slots.data)
            for table, own, slots in zip(tables, inputs.block_tables, inputs.slot_mapping, strict=True)
        ]


class BatchBuilder:
    """Builds StepInputs. Its arrays may be views: the next `build` overwrites them, and nobody else may write."""

    def __init__(self, *, max_tokens: int, block_size: int, tables: list[Int32]) -> None:
        """max_tokens bounds one step; tables: of each cache group, int32 [sequences, columns]."""
        self._block_size = block_size
        self._tables = tables
        self._flat_tables = [table.reshape(-1) for table in tables]
        self._input_ids = np.zeros(max_tokens, np.int64)
        self._positions = np.zeros(max_tokens, np.int64)
        self._slots = [np.zeros(max_tokens, np.int32) for _ in tables]
        self._plan = np.zeros(6, np.int32)
        self._decoded: list[Sequence] = []
        self._picked: list[int] = []
        self._inputs: StepInputs | None = None
        self._views: _Views | None = None
        self._query_start = np.arange(max_tokens + 1, dtype=np.int32)
        self._logit_rows = np.arange(max_tokens, dtype=np.int64)

    def build(self, works: list[Work]) -> StepInputs:
        """The inputs of a step, for works that start with those of one token each.

        logit_rows lists the last `logits` rows of every work, in order; when there are none, it holds row 0, so
        that the head never runs on nothing. Where the sequences of the last step decode again, the result is the
        same object, written anew.
        """
        if len(works) > _FEW or not all(work.tokens == 1 and work.samples for work in works):
            self._decoded = []
            return self._new(works)
        sequences = [work.sequence for work in works]
        again = self._again(sequences)
        if again is not None:
            return again
        self._decoded = []
        inputs = self._inputs = self._new(works)
        if not any(sequence.decoding.scores_prompt for sequence in sequences):
            self._decoded = sequences
            self._picked = [held(sequence).row for sequence in sequences]
            self._views = _Views(inputs, self._flat_tables)
        return inputs

    def _again(self, sequences: list[Sequence]) -> StepInputs | None:
        """The arrays of the last step, brought up to now; None where their shapes or sequences differ."""
        inputs, views = self._inputs, self._views
        if inputs is None or views is None or sequences != self._decoded:
            return None
        picked = [held(sequence).row for sequence in sequences]
        begins = [sequence.computed for sequence in sequences]
        longest = max(begins) + 1
        width = -(-longest // self._block_size)
        if picked != self._picked or width != inputs.block_tables[0].shape[1]:
            return None
        inputs.token_source = _sources(sequences)
        views.plan[3] = context_bucket(longest)
        columns = self._tables[0].shape[1]
        for place, (sequence, row, begin) in enumerate(zip(sequences, picked, begins, strict=True)):
            views.input_ids[place] = sequence.last
            views.positions[place] = begin
            views.seq_lens[place] = begin + 1
            column, offset = divmod(begin, self._block_size)
            first = place * width
            for table, own, slots in views.groups:
                own[first : first + width] = table[row * columns : row * columns + width]
                slots[place] = own[first + column] * self._block_size + offset
        return inputs

    def _new(self, works: list[Work]) -> StepInputs:
        rows, decodes = len(works), singles(works)
        chunks = works[decodes:]
        sequences = [work.sequence for work in works]
        begins = np.fromiter([sequence.computed for sequence in sequences], np.int64, rows)
        tables = [sequence.blocks.row for sequence in sequences]  # type: ignore[union-attr]
        picked = np.fromiter(tables, np.int64, rows)
        if chunks:
            del sequences[decodes:]
        sampling = all([work.samples for work in works[:decodes]])  # noqa: C419  A list is twice as fast here.
        self._input_ids[:decodes] = _next_tokens(sequences, sampling)
        self._positions[:decodes] = begins[:decodes]
        seq_lens = begins.astype(np.int32)
        if not chunks and sampling:
            # Every row decodes: each has one token, which goes through the head.
            token = rows
            query_start, logit_rows = self._query_start[: rows + 1], self._logit_rows[:rows]
            seq_lens += 1
        else:
            ends = self._chunks(chunks, decodes)
            token = ends[-1] if ends else rows
            query_start = self._query_start[: rows + 1].copy()
            query_start[decodes + 1 :] = ends
            lengths = query_start[1:] - query_start[:-1]
            seq_lens += lengths
            logit_rows = self._heads(works, query_start, decodes if sampling else 0)
        longest, query = int(seq_lens.max()), max([work.tokens for work in chunks], default=1)
        self._plan[:] = (decodes, rows - decodes, query, context_bucket(longest), token, rows)
        width = -(-longest // self._block_size)
        return StepInputs(
            input_ids=self._input_ids[:token],
            positions=self._positions[:token],
            query_start=query_start,
            seq_lens=seq_lens,
            logit_rows=logit_rows,
            block_tables=[table[:, :width].take(picked, axis=0) for table in self._tables],
            slot_mapping=self._slot_mapping(picked if token == rows else np.repeat(picked, lengths), token),
            plan=self._plan,
            token_source=self._token_source(sequences, token),
        )

    def _token_source(self, decoding: list[Sequence], tokens: int) -> Int32 | None:
        """For each of a step's tokens the row of the step before that chooses it, None where all are known.

        decoding: the sequences of the first tokens, one each.
        """
        known = _sources(decoding)
        if known is None or len(decoding) == tokens:
            return known
        source = np.full(tokens, -1, np.int32)
        source[: len(decoding)] = known
        return source

    def _chunks(self, works: list[Work], token: int) -> list[int]:
        """Write ids and positions of works of several tokens, from row `token` on; where each of them ends."""
        ends = []
        for work in works:
            begin, end = work.sequence.computed, token + work.tokens
            known = work.tokens - len(work.drafts)
            self._input_ids[token : token + known] = work.sequence.tokens[begin : begin + known]
            if work.drafts:
                self._input_ids[token + known : end] = work.drafts
            self._positions[token:end] = np.arange(begin, begin + work.tokens)
            ends.append(end)
            token = end
        return ends

    def _heads(self, works: list[Work], query_start: Int32, decodes: int) -> Int64:
        """The rows that go through the head, row 0 if there is none.

        decodes: how many works, the first ones, have a single token that is their sequence's newest, so that
        exactly its row does.
        """
        rows: list[int] = []
        for work, end in zip(works[decodes:], query_start[decodes + 1 :].tolist(), strict=True):
            rows += range(end - work.logits, end)
        if not (rows or decodes):
            rows = [0]
        return np.concatenate([self._logit_rows[:decodes], np.array(rows, np.int64)])

    def _slot_mapping(self, rows: Int64, tokens: int) -> list[Int32]:
        """For each group the slot int32 [T] of every token: its block times the block size plus its offset.

        rows: int64 [T], the row of the block tables that each token's sequence has.
        """
        positions = self._positions[:tokens]
        columns = positions // self._block_size
        places = rows * self._tables[0].shape[1]
        places += columns
        mapping = []
        for table, buffer in zip(self._flat_tables, self._slots, strict=True):
            slots = buffer[:tokens]
            # block * size + position - column * size
            np.add((table.take(places) - columns) * self._block_size, positions, out=slots, casting="unsafe")
            mapping.append(slots)
        return mapping


def _sources(sequences: list[Sequence]) -> Int32 | None:
    """For sequences of one token each, which row of the step before chooses it; None where all are known."""
    sources = [sequence.source for sequence in sequences]
    return np.array(sources, np.int32) if sources.count(-1) != len(sources) else None


def _next_tokens(sequences: list[Sequence], sampling: bool) -> list[int]:
    """The token that each sequence computes next. sampling: whether it is the newest one of all of them."""
    if sampling:
        return [sequence.last for sequence in sequences]
    return [sequence.tokens.item(sequence.computed) for sequence in sequences]
