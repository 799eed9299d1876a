"""The packed arrays of a step against a plain loop over its tokens."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcore.decoding.params import SamplingParams
from rtcore.executor.base import StepInputs
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.kvcache.match import Match
from rtcore.request import EngineRequest
from rtcore.scheduler.base import Work
from rtcore.scheduler.batch import BatchBuilder, context_bucket
from rtcore.sequence import Sequence, held


@settings(max_examples=80, deadline=None)
@given(
    works=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=6),
    block_size=st.integers(1, 6),
    groups=st.integers(1, 3),
    repeats=st.integers(1, 2),
)
def test_arrays(works: list[tuple[int, int, int]], block_size: int, groups: int, repeats: int) -> None:
    """Each work: tokens computed before, tokens of this step, tokens known beyond them."""
    manager = BlockManager([300] * groups, block_size, max_sequences=6, max_length=40)
    builder = BatchBuilder(max_tokens=60, block_size=block_size, tables=manager.tables)
    random = np.random.default_rng(1)
    picked = []
    for computed, tokens, beyond in sorted(works, key=lambda work: work[1] > 1):
        ids = random.integers(0, 1000, computed + tokens + beyond).tolist()
        chain = manager.new_chain(CacheKey("1"))
        sequence = Sequence.create(EngineRequest("x", ids, SamplingParams()), chain, 0, 0, frozenset())
        sequence.blocks = manager.open(chain, Match([]))
        manager.append(sequence.blocks, len(ids), 0)
        sequence.computed = computed
        picked.append(Work(sequence, tokens, 0, not beyond))
    for _ in range(repeats):
        inputs = builder.build(picked)
    row = 0
    for number, work in enumerate(picked):
        sequence = work.sequence
        assert inputs.query_start[number] == row
        assert inputs.seq_lens[number] == sequence.computed + work.tokens
        for position in range(sequence.computed, sequence.computed + work.tokens):
            assert inputs.input_ids[row] == sequence.tokens[position]
            assert inputs.positions[row] == position
            for group in range(groups):
                block = manager.tables[group][sequence.blocks.row, position // block_size]
                assert inputs.block_tables[group][number, position // block_size] == block
                assert inputs.slot_mapping[group][row] == block * block_size + position % block_size
            row += 1
        assert (row - 1 in inputs.logit_rows) == work.samples or not any(work.samples for work in picked)
    assert inputs.query_start[len(picked)] == row == len(inputs.input_ids)
    decode = sum(work.tokens == 1 for work in picked)
    longest = int(max(inputs.seq_lens))
    assert inputs.plan.tolist() == [
        decode,
        len(picked) - decode,
        max(work.tokens for work in picked),
        context_bucket(longest),
        row,
        len(picked),
    ]
    assert len(inputs.logit_rows) == max(1, sum(work.samples for work in picked))
    for table in inputs.block_tables:
        assert table.flags.c_contiguous and table.shape == (len(picked), -(-longest // block_size))


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    block_size=st.integers(1, 6),
    groups=st.integers(1, 2),
    tokens=st.integers(1, 14),
    moved=st.integers(0, 14),
)
def test_sequences_that_decode_again(
    prompts: list[int], block_size: int, groups: int, tokens: int, moved: int
) -> None:
    """Step by step the arrays are those of a builder that has not seen the step before."""
    manager = BlockManager([300] * groups, block_size, max_sequences=6, max_length=60)
    builder = BatchBuilder(max_tokens=60, block_size=block_size, tables=manager.tables)
    sequences = []
    for length in prompts:
        chain = manager.new_chain(CacheKey("1"))
        sequence = Sequence.create(EngineRequest("x", [*range(length)], SamplingParams()), chain, 0, 0, frozenset())
        sequence.blocks = manager.open(chain, Match([]))
        sequence.computed = length - 1
        sequences.append(sequence)
    for step in range(tokens):
        if step == moved:  # to blocks of its own in another row, as after a preemption
            first = sequences[0]
            manager.close(held(first))
            first.blocks = manager.open(first.chain, Match([]))
        for sequence in sequences:
            manager.append(held(sequence), sequence.length, sequence.computed)
        works = [Work(sequence, 1, 0, True) for sequence in sequences]
        found = copy.deepcopy(builder.build(works))
        fresh = BatchBuilder(max_tokens=60, block_size=block_size, tables=manager.tables).build(works)
        for name in StepInputs.__dataclass_fields__:
            np.testing.assert_equal(getattr(found, name), getattr(fresh, name), err_msg=name)
        for number, sequence in enumerate(sequences):
            sequence.computed += 1
            sequence.append(100 * step + number)


@pytest.mark.parametrize(
    ("length", "bucket"), [(1, 128), (128, 128), (129, 256), (256, 256), (4097, 8192), (8192, 8192)]
)
def test_buckets_hold_their_lengths(length: int, bucket: int) -> None:
    assert context_bucket(length) == bucket
