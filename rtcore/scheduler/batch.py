"""BatchBuilder: the packed arrays of one step, written into memory that is reserved once."""

from __future__ import annotations

import numpy as np

from rtcore.executor.base import Int32, Int64, StepInputs
from rtcore.scheduler.base import Work
from rtcore.sequence import Sequence, held

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
        self._decoded: list[Sequence] = []
        self._picked: list[int] = []
        self._rows = np.zeros(0, np.int64)
        self._inputs: StepInputs | None = None
        self._views: list[memoryview] = []

    def build(self, works: list[Work]) -> StepInputs:
        """The inputs of a step, for works that start with those of one token each.

        logit_rows lists the last `logits` rows of every work, in order; when there are none, it holds row 0, so
        that the head never runs on nothing. Where the sequences of the last step decode again, the result is the
        same object, written anew.
        """
        sequences = [work.sequence for work in works if work.tokens == 1 and work.samples]
        if len(sequences) == len(works):
            again = self._again(sequences)
            if again is not None:
                return again
            self._decoded = [] if any(one.decoding.scores_prompt for one in sequences) else sequences
        else:
            self._decoded = []
        inputs = self._inputs = self._new(works)
        self._picked = [held(sequence).row for sequence in self._decoded]
        if self._decoded:
            self._rows = np.array(self._picked, np.int64)
            ids, positions, lengths = inputs.input_ids, inputs.positions, inputs.seq_lens
            self._views = [ids.data, positions.data, lengths.data, *(slots.data for slots in inputs.slot_mapping)]
        return inputs

    def _again(self, sequences: list[Sequence]) -> StepInputs | None:
        """The arrays of the last step, brought up to now; None where their shapes or sequences differ."""
        inputs = self._inputs
        if inputs is None or not sequences or sequences != self._decoded:
            return None
        picked = [held(sequence).row for sequence in sequences]
        begins = [sequence.computed for sequence in sequences]
        longest = max(begins) + 1
        width = -(-longest // self._block_size)
        if picked != self._picked or width != inputs.block_tables[0].shape[1]:
            return None
        self._plan[3] = context_bucket(longest)
        inputs.token_source = _sources(sequences)
        for table, own in zip(self._tables, inputs.block_tables, strict=True):
            table[:, :width].take(self._rows, axis=0, out=own, mode="clip")
        # One element at a time by memoryview: after a step has filled the caches with weights, each function of
        # numpy that is called once takes longer than a few rows of these do.
        size = self._block_size
        ids, positions, lengths, *slots = self._views
        blocks = [table.data for table in inputs.block_tables]
        for place, (sequence, begin) in enumerate(zip(sequences, begins, strict=True)):
            ids[place] = sequence.last
            positions[place] = begin
            lengths[place] = begin + 1
            column, offset = divmod(begin, size)
            for numbers, mapping in zip(blocks, slots, strict=True):
                mapping[place] = numbers[place, column] * size + offset
        return inputs

    def _new(self, works: list[Work]) -> StepInputs:
        sequences = [work.sequence for work in works]
        rows = len(works)
        samples = [work.samples for work in works]
        begins = np.array([sequence.computed for sequence in sequences], np.int64)
        singles = 0
        while singles < rows and works[singles].tokens == 1:
            singles += 1
        self._input_ids[:singles] = [
            sequence.last if last else sequence.tokens.item(sequence.computed)
            for sequence, last in zip(sequences[:singles], samples[:singles], strict=True)
        ]
        self._positions[:singles] = begins[:singles]
        starts = [*range(singles + 1)]
        token = singles
        for work, begin in zip(works[singles:], begins[singles:].tolist(), strict=True):
            end = token + work.tokens
            known = work.tokens - len(work.drafts)
            self._input_ids[token : token + known] = work.sequence.tokens[begin : begin + known]
            if work.drafts:
                self._input_ids[token + known : end] = work.drafts
            self._positions[token:end] = np.arange(begin, begin + work.tokens)
            starts.append(end)
            token = end
        query_start = np.array(starts, np.int32)
        lengths = query_start[1:] - query_start[:-1]
        seq_lens = begins.astype(np.int32)
        seq_lens += lengths
        longest = int(seq_lens.max())
        self._plan[:] = (singles, rows - singles, int(lengths.max()), context_bucket(longest), token, rows)
        picked = np.array([held(sequence).row for sequence in sequences], np.int64)
        width = -(-longest // self._block_size)
        sampled: list[int] = []
        for end, work in zip(starts[1:], works, strict=True):
            if work.drafts or work.sequence.decoding.scores_prompt:
                sampled += range(end - work.logits, end)
            elif work.samples:
                sampled.append(end - 1)
        return StepInputs(
            input_ids=self._input_ids[:token],
            positions=self._positions[:token],
            query_start=query_start,
            seq_lens=seq_lens,
            logit_rows=np.array(sampled or [0], np.int64),
            block_tables=[table[:, :width].take(picked, axis=0) for table in self._tables],
            slot_mapping=self._slot_mapping(picked if token == rows else np.repeat(picked, lengths), token),
            plan=self._plan,
            token_source=self._token_source(works, singles, token),
        )

    def _token_source(self, works: list[Work], singles: int, tokens: int) -> Int32 | None:
        """For each of a step's tokens the row of the step before that chooses it, None where all are known."""
        known = _sources([work.sequence for work in works[:singles]])
        if known is None or singles == tokens:
            return known
        source = np.full(tokens, -1, np.int32)
        source[:singles] = known
        return source

    def _slot_mapping(self, rows: Int64, tokens: int) -> list[Int32]:
        """For each group the slot int32 [T] of every token: its block times the block size plus its offset.

        rows: int64 [T], the row of the block tables that each token's sequence has.
        """
        positions = self._positions[:tokens]
        index = positions // self._block_size
        offset = positions - index * self._block_size
        mapping = []
        for table, buffer in zip(self._tables, self._slots, strict=True):
            slots = buffer[:tokens]
            np.multiply(table[rows, index], self._block_size, out=slots)
            np.add(slots, offset, out=slots, casting="unsafe")
            mapping.append(slots)
        return mapping


def _sources(sequences: list[Sequence]) -> Int32 | None:
    """For sequences of one token each, which row of the step before chooses it; None where all are known."""
    sources = [sequence.source for sequence in sequences]
    return np.array(sources, np.int32) if max(sources, default=-1) >= 0 else None
