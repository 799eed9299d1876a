"""Turns, against lists of lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rtcore.decoding.grammar.turns import Turns

OWNERS = st.sampled_from("abc")
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), OWNERS, st.integers(0, 9)),
        st.tuples(st.just("drop"), st.just(""), st.integers(0, 9)),
        st.tuples(st.just("take"), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_owners_take_turns_and_an_item_is_taken_once(actions: list[tuple[str, str, int]]) -> None:
    turns: Turns[int] = Turns()
    model: list[tuple[str, list[int]]] = []

    def without(item: int) -> list[tuple[str, list[int]]]:
        left = [(owner, [one for one in items if one != item]) for owner, items in model]
        return [(owner, items) for owner, items in left if items]

    for action, owner, item in actions:
        held = any(item in items for _, items in model)
        if action == "put":
            turns.put(owner, item)
            items = next((items for name, items in model if name == owner), None)
            if items is None:
                model.append((owner, [item]))
            elif item not in items:
                items.append(item)
        elif action == "drop":
            assert turns.drop(item) == held
            model = without(item)
        elif model:
            expected = model[0][1][0]
            model.append(model.pop(0))
            assert turns.take() == expected
            model = without(expected)
        else:
            assert turns.take() is None


def test_each_owner_has_its_turn() -> None:
    turns: Turns[str] = Turns()
    for item in ("a1", "a2", "a3", "b1", "b2", "c1"):
        turns.put(item[0], item)
    taken = [turns.take() for _ in range(7)]
    assert taken == ["a1", "b1", "c1", "a2", "b2", "a3", None]
