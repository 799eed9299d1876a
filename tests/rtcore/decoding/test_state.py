"""Rows of sequences with drafts: what comes before each draft is what it is conditioned on."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.sample_columns import Number
from rtcore.decoding.counts import TokenCounts
from rtcore.decoding.params import SamplingParams
from rtcore.decoding.rows import RowBuilder, rows_of
from rtcore.kvcache.block_manager import BlockManager
from rtcore.kvcache.hash_chain import CacheKey
from rtcore.request import EngineRequest
from rtcore.scheduler.base import Work
from rtcore.sequence import Sequence

VOCABULARY = 40
ids = st.integers(0, VOCABULARY - 1)


def sequence_of(prompt: list[int], answer: list[int], **params: Any) -> Sequence:
    """A sequence that has generated `answer`, all but its newest token in the cache."""
    blocks = BlockManager([64], 4, max_sequences=4, max_length=200)
    request = EngineRequest("r", prompt, SamplingParams(max_tokens=100, seed=-1, **params))
    sequence = Sequence.create(request, blocks.new_chain(CacheKey("x")), 0, 2**64 - 1, frozenset({2}))
    for token in answer:
        sequence.append(token)
    sequence.computed = sequence.length - 1
    return sequence


@settings(max_examples=80)
@given(prompt=st.lists(ids, min_size=1), answer=st.lists(ids), drafts=st.lists(ids, max_size=6))
def test_counts(prompt: list[int], answer: list[int], drafts: list[int]) -> None:
    counts = TokenCounts(np.array(prompt))
    for token in answer:
        counts.add(token)
    for count in range(len(drafts) + 1):
        known = answer + drafts[:count]
        found, times = counts.after(drafts[:count])
        assert dict(zip(found.tolist(), times.tolist(), strict=True)) == {
            token: known.count(token) for token in {*prompt, *known}
        }
        assert len(set(found.tolist())) == len(found)
    assert sum(counts.after()[1].tolist()) == len(answer)


@settings(max_examples=60, deadline=None)
@given(prompt=st.lists(ids, min_size=1), answer=st.lists(ids), drafts=st.lists(ids, max_size=5))
def test_a_row_after_drafts_is_the_row_of_a_sequence_that_holds_them(
    prompt: list[int], answer: list[int], drafts: list[int]
) -> None:
    params: dict[str, Any] = {
        "repetition_penalty": 1.2,
        "bad_word_ids": [[5], [6, 7], [1, 2, 3]],
        "min_tokens": 4,
        "logit_bias": {9: 2.0},
        "allowed_token_ids": range(30),
    }
    sequence = sequence_of(prompt, answer, **params)
    work = Work(sequence, 1 + len(drafts), 0, True, tuple(drafts))
    assert work.logits == len(drafts) + 1
    builder = RowBuilder(VOCABULARY)
    together = builder.build(rows_of([work]))
    for row in range(len(drafts) + 1):
        grown = sequence_of(prompt, answer + drafts[:row], **params)
        alone = builder.build(rows_of([Work(grown, 1, 0, True)]))
        np.testing.assert_array_equal(together.settings[row], alone.settings[0])
        columns = [Number.SEED, Number.POSITION, Number.TOP_K, Number.LOGPROBS, Number.FORCED]
        np.testing.assert_array_equal(together.numbers[row, columns], alone.numbers[0, columns])
        np.testing.assert_array_equal(together.masks[together.numbers[row, Number.MASK]], alone.masks[0])
        for start, names in (
            ("token_start", ("token_ids", "token_counts")),
            ("bias_start", ("bias_ids", "bias_values")),
        ):
            begin, end = getattr(together, start)[row : row + 2]
            found = zip(*(getattr(together, name)[begin:end].tolist() for name in names), strict=True)
            wanted = zip(*(getattr(alone, name).tolist() for name in names), strict=True)
            assert sorted(found) == sorted(wanted)
    assert sequence.decoding.seed == -1


def test_what_nobody_asks_for_is_empty_and_the_same_objects() -> None:
    builder = RowBuilder(VOCABULARY)
    works = [Work(sequence_of([3], [4]), 1, 0, True) for _ in range(3)]
    first, second = builder.build(rows_of(works)), builder.build(rows_of(works))
    assert len(first) == 3 and not len(first.token_ids) and not len(first.bias_ids) and not len(first.masks)
    assert first.token_start is second.token_start and first.masks is second.masks
    assert first.token_start.tolist() == [0, 0, 0, 0]
    assert len(builder.build([])) == 0


def test_rows_of_a_prompt_that_is_scored() -> None:
    sequence = sequence_of([3, 4, 5, 6, 7], [], prompt_logprobs=2)
    sequence.computed = 0
    work = Work(sequence, 3, 0, False)
    assert [row.forced for row in rows_of([work])] == [4, 5, 6]
    sequence.decoding.prompt_scored, sequence.computed = 4, 3
    last = Work(sequence, 2, 0, True)
    assert [row.forced for row in rows_of([last])] == [7, -1]
    sequence.computed = 0  # preempted: what is known is not asked for again
    assert [row.forced for row in rows_of([Work(sequence, 3, 0, False)])] == []
    assert [row.forced for row in rows_of([Work(sequence, 5, 0, True)])] == [7, -1]
