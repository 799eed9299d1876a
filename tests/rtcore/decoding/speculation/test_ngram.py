"""Prompt lookup: found where something followed the same tokens before, and never anything else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rtcore.decoding.speculation.base import Ask
from rtcore.decoding.speculation.ngram import SIZES, NgramIndex, NgramProposer


def last_occurrence(tokens: list[int]) -> int | None:
    """Where what followed begins, by looking at all of the sequence: the longest n-gram, its latest place."""
    for size in SIZES:
        if len(tokens) <= size:
            continue
        gram = tokens[-size:]
        for begin in range(len(tokens) - 1, size - 1, -1):
            if tokens[begin - size : begin] == gram:
                return begin
    return None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 10), st.data())
def test_it_finds_what_a_search_finds(tokens: list[int], count: int, data: st.DataObject) -> None:
    """However the sequence came to be: token by token, at once, or anything between."""
    index = NgramIndex()
    place = 0
    while place < len(tokens):
        place = data.draw(st.integers(place + 1, len(tokens)))
        index.extend(np.array(tokens[:place], np.int64))
    found = index.continuation(np.array(tokens, np.int64), count)
    begin = last_occurrence(tokens)
    if begin is None:
        assert found == []
        return
    expected = list(tokens[begin:])
    while len(expected) < count:
        expected += tokens[begin:]
    assert found == expected[:count]


@given(st.integers(0, 2**32 - 1), st.integers(300, 3000))
def test_growing_tables_lose_no_more_than_collisions(seed: int, length: int) -> None:
    """A repetition far back in a long text of many different tokens is found all the same."""
    tokens = np.random.default_rng(seed).integers(0, 150_000, length)
    tokens[-5:] = tokens[100:105]
    index = NgramIndex()
    for end in (200, 201, 202, length - 1, length):
        index.extend(tokens[:end])
    found = index.continuation(tokens, 8)
    # Another n-gram may have taken the place of each size: at most half of a table is in use.
    assert found in ([], tokens[105:113].tolist())


def test_sequences_do_not_mix_and_are_forgotten() -> None:
    proposer = NgramProposer()
    first, second = np.array([1, 2, 3, 4, 1, 2, 3]), np.array([5, 6, 7, 8, 5, 6, 7])
    assert proposer.propose([Ask("a", first, 2), Ask("b", second, 3)]) == [[4, 1], [8, 5, 6]]
    proposer.forget("a")
    proposer.forget("a")
    proposer.forget("never seen")
    assert proposer.propose([Ask("a", np.array([9, 9, 9, 8]), 2)]) == [[]]
    proposer.close()
    proposer.close()


def test_work_for_each_token_does_not_grow() -> None:
    """Counted in table entries written: one of each size for a token, whatever the length, apart from growing."""
    index = NgramIndex()
    tokens = np.arange(5000) % 4096
    index.extend(tokens[:4097])
    tables = [table.copy() for table in index._tables]
    index.extend(tokens[:4098])
    changed = sum(int((before != after).sum()) for before, after in zip(tables, index._tables, strict=True))
    assert changed <= len(SIZES)
