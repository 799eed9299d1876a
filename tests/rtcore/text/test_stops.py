from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcore.text.stops import StopMatcher


def naive(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """The text up to the stop that ends first, the longest of those that end together."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def held_back(text: str, stops: tuple[str, ...]) -> int:
    """The length of the longest suffix that begins a stop."""
    lengths = (n for n in range(len(text), 0, -1) if any(stop.startswith(text[len(text) - n :]) for stop in stops))
    return next(lengths, 0)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("abü", max_size=24),
    stops=st.lists(st.text("abü", min_size=1, max_size=5), max_size=5).map(tuple),
    cuts=st.lists(st.integers(0, 24)),
    include=st.booleans(),
)
def test_any_split_ends_where_the_whole_text_does(
    text: str, stops: tuple[str, ...], cuts: list[int], include: bool
) -> None:
    expected, stop = naive(text, stops, include)
    matcher = StopMatcher(stops, include)
    said = fed = ""
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
        fed += text[start:end]
        said += matcher.feed(text[start:end])
        if matcher.matched is None:
            assert said == fed[: len(fed) - held_back(fed, stops)]
    if matcher.matched is None:
        said += matcher.finish()
    assert (said, matcher.matched) == (expected, stop)


@pytest.mark.parametrize(
    ("stops", "text", "said", "stop"),
    [
        (("\n\n",), "one\ntwo\n\nthree", "one\ntwo", "\n\n"),
        (("abcd", "bc"), "xabcd", "xa", "bc"),
        (("c", "abc"), "xabc", "x", "abc"),
        (("aab",), "aaab", "a", "aab"),
        (("👩‍👧",), "👩‍👩", "👩‍👩", None),
    ],
)
def test_examples(stops: tuple[str, ...], text: str, said: str, stop: str | None) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(map(matcher.feed, text))
    assert (shown + matcher.finish(), matcher.matched) == (said, stop)


def test_nothing_comes_after_a_stop() -> None:
    matcher = StopMatcher(("x",))
    assert [matcher.feed("axb"), matcher.feed("c"), matcher.finish()] == ["a", "", ""]
