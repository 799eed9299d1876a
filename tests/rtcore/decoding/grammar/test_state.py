"""A grammar's state: masks, stop ids, and looking ahead without moving."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rtcore.decoding.grammar.words import STOP, VOCAB_SIZE, allowed, encode, state_of

NONE: frozenset[int] = frozenset()


def test_stop_ids_come_where_the_grammar_may_end_and_nowhere_else() -> None:
    state = state_of(regex="ab?")
    assert allowed(state.masks([], NONE, 0)[0]) == set(encode("a"))
    state.accept(encode("a"))
    assert allowed(state.masks([], NONE, 0)[0]) == {*encode("b"), STOP}
    state.accept(encode("b"))
    assert allowed(state.masks([], NONE, 0)[0]) == {STOP}
    assert state.error is None


def test_the_requests_own_stop_ids_come_there_too() -> None:
    state = state_of(regex="ab?")
    own = frozenset(encode("z"))
    assert allowed(state.masks([], own, 0)[0]) == set(encode("a"))
    state.accept(encode("a"))
    assert allowed(state.masks([], own, 0)[0]) == {*encode("bz"), STOP}


def test_stop_ids_are_held_back_while_anything_else_can_come() -> None:
    state = state_of(regex="ab?")
    state.accept(encode("a"))
    rows = state.masks(encode("b"), NONE, 2)
    assert allowed(rows[0]) == set(encode("b"))
    assert allowed(rows[1]) == {STOP}
    assert allowed(state.masks(encode("b"), NONE, 1)[1]) == {STOP}
    assert STOP in allowed(state.masks([], NONE, 0)[0])


def test_nothing_comes_after_a_draft_that_is_not_allowed() -> None:
    state = state_of(regex="abc")
    rows = state.masks(encode("axc"), NONE, 0)
    assert [len(allowed(row)) for row in rows] == [1, 1, 0, 0]
    assert allowed(state.masks([], NONE, 0)[0]) == set(encode("a")), "looking ahead moved the state"
    assert state.valid(encode("abx")) == 2


def test_a_stop_id_among_the_drafts() -> None:
    state = state_of(regex="a|ab")
    rows = state.masks([*encode("a"), STOP], NONE, 0)
    assert allowed(rows[1]) == {*encode("b"), STOP}
    assert allowed(rows[2]) == set()
    assert allowed(state.masks([], NONE, 0)[0]) == set(encode("a"))


def test_a_token_that_the_grammar_does_not_allow_ends_it() -> None:
    state = state_of(regex="abc", field="guided_regex")
    state.accept(encode("x"))
    assert state.error is not None
    assert state.error.param == "guided_regex"
    assert [len(allowed(row)) for row in state.masks(encode("a"), NONE, 0)] == [VOCAB_SIZE, 0]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_masks_are_what_can_be_followed(data: st.DataObject) -> None:
    """A walk through a recursive grammar: a token is in the mask exactly if a fresh state can take it, and looking
    ahead over any drafts changes nothing."""
    spec = {"grammar": 'start: item\nitem: "[" (item ("," item)*)? "]" | DIGIT\nDIGIT: /[0-9]{1,2}/'}
    state = state_of(**spec)
    walked: list[int] = []
    for _ in range(data.draw(st.integers(0, 12))):
        drafts = data.draw(st.lists(st.sampled_from([*encode("[],1"), STOP]), max_size=4))
        rows = state.masks(drafts, NONE, 0)
        here = allowed(rows[0])
        assert here == allowed(state.masks([], NONE, 0)[0])
        for count in range(len(drafts)):
            fresh = state_of(**spec)
            fresh.accept([*walked, *drafts[: count + 1]])
            if fresh.error is not None or drafts[count] == STOP:
                break
            assert allowed(rows[count + 1]) == allowed(fresh.masks([], NONE, 0)[0])
        going = sorted(here - {STOP})
        if not going:
            break
        token = data.draw(st.sampled_from(going))
        state.accept([token])
        walked.append(token)
        assert state.error is None
        assert state.accepted == len(walked)
