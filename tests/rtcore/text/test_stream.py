from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcore.decoding.params import SamplingParams
from rtcore.request import EngineRequest, FinishReason, TokenDelta
from rtcore.text.stream import TextDelta, TextStream
from tests.rtcore.text.vocabularies import byte_level, wrap

TOKENIZER = wrap(byte_level(), bos_id=0)
END = 1


def stream_of(prompt: str = "the", **params: Any) -> TextStream:
    ids = TOKENIZER.encode(prompt, add_special_tokens=False) or [0]
    return TextStream(TOKENIZER, EngineRequest("r", ids, SamplingParams(**params)))


def feed(
    stream: TextStream, parts: list[list[int]], finish: FinishReason, reason: int | None = None
) -> list[TextDelta]:
    deltas = [TokenDelta("r", part) for part in parts[:-1]]
    deltas.append(TokenDelta("r", parts[-1], finish, reason))
    return [stream.feed(delta) for delta in deltas]


def text_of(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_of(deltas: list[TextDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def encoded(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_the_models_own_end_is_counted_and_not_shown() -> None:
    for skip in (True, False):
        deltas = feed(stream_of(skip_special_tokens=skip), [encoded(" fox"), [END]], "stop")
        assert (text_of(deltas), ids_of(deltas)) == (" fox", [*encoded(" fox"), END])
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason, deltas[-1].cut) == ("stop", None, False)


@pytest.mark.parametrize("include", [True, False])
def test_a_stop_token_is_shown_on_request(include: bool) -> None:
    (stop,) = encoded("!")
    stream = stream_of(stop_token_ids=(stop,), include_stop_str_in_output=include)
    deltas = feed(stream, [[*encoded("a"), stop]], "stop", stop)
    assert text_of(deltas) == ("a!" if include else "a")
    assert (ids_of(deltas), deltas[-1].stop_reason) == ([*encoded("a"), stop], stop)


def test_a_stop_string_cuts_and_what_follows_does_not_count() -> None:
    ids = encoded("one\ntwo END three")
    stream = stream_of(stop=("END",))
    deltas = feed(stream, [ids[:2], ids[2:], encoded("more")], "length")
    assert text_of(deltas) == "one\ntwo "
    assert TOKENIZER.decode(ids_of(deltas)) == "one\ntwo END"
    assert [delta.cut for delta in deltas] == [False, True, False]
    assert (deltas[1].finish_reason, deltas[1].stop_reason) == ("stop", "END")
    assert deltas[2] == TextDelta()


def test_a_stop_string_beats_the_end_that_comes_with_it() -> None:
    deltas = feed(stream_of(stop=("fox",)), [encoded(" fox")], "length")
    assert (text_of(deltas), deltas[-1].finish_reason, deltas[-1].stop_reason) == (" ", "stop", "fox")


def test_what_was_held_back_comes_with_the_end() -> None:
    half = encoded("€")[:2]
    deltas = feed(stream_of(stop=("foxes",)), [encoded(" fox"), half], "length")
    assert [delta.text for delta in deltas] == [" ", "fox\ufffd"]
    assert deltas[-1].finish_reason == "length"


def test_a_stop_may_be_the_replacement_of_half_a_character() -> None:
    deltas = feed(stream_of(stop=("\ufffd",)), [encoded("a"), encoded("€")[:2]], "length")
    assert (text_of(deltas), deltas[-1].finish_reason, deltas[-1].cut) == ("a", "stop", True)


@pytest.mark.parametrize("reason", ["cancelled", "error"])
def test_other_ends_pass_through(reason: FinishReason) -> None:
    deltas = feed(stream_of(), [encoded("a"), []], reason)
    assert (text_of(deltas), deltas[-1].finish_reason) == ("a", reason)


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(st.sampled_from("abfox é🙂中\n"), max_size=20),
    prompt=st.text(st.sampled_from("aé🙂"), max_size=3),
    stops=st.lists(st.text(st.sampled_from("abox é🙂"), min_size=1, max_size=3), max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    include=st.booleans(),
)
def test_stream_and_whole_end_at_the_same_character(
    text: str, prompt: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    ids = [*encoded(text), END]
    params = {"stop": tuple(stops), "include_stop_str_in_output": include}
    whole = feed(stream_of(prompt, **params), [ids], "stop")
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    parts = [ids[start:end] for start, end in pairwise(edges)]
    split = feed(stream_of(prompt, **params), parts, "stop")
    assert text_of(split) == text_of(whole)
    assert ids_of(split) == ids_of(whole)
    ends = [(delta.finish_reason, delta.stop_reason, delta.cut) for delta in split if delta.finish_reason]
    assert ends == [(whole[0].finish_reason, whole[0].stop_reason, whole[0].cut)]
    if not whole[0].cut:
        assert text_of(whole) == text
