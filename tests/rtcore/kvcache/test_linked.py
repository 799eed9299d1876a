"""LinkedLists against plain lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rtcore.kvcache.linked import LinkedLists

CAPACITY = 9
ITEMS = st.lists(st.integers(0, CAPACITY - 1), max_size=CAPACITY, unique=True)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), ITEMS), max_size=12))
def test_lists_hold_what_was_appended_and_not_removed(changes: list[tuple[bool, int, list[int]]]) -> None:
    lists = LinkedLists(CAPACITY, lists=2)
    assert lists.new() == 2
    truth: list[list[int]] = [[], [], []]
    for extends, which, items in changes:
        if extends:
            absent = [item for item in items if not any(item in one for one in truth)]
            lists.extend(which, absent)
            truth[which] += absent
        else:
            lists.remove(items)
            truth = [[item for item in one if item not in items] for one in truth]
        for number, expected in enumerate(truth):
            assert list(lists.items(number)) == expected
            assert lists.size(number) == len(expected)
            assert lists.first(number) == (expected[0] if expected else -1)
            for count in range(CAPACITY):
                assert lists.oldest(number, count) == expected[:count]
        for item in range(CAPACITY):
            holder = [number for number, expected in enumerate(truth) if item in expected]
            assert lists.list_of(item) == (holder[0] if holder else -1)
