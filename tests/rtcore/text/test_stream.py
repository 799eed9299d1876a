from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcore.decoding.params import SamplingParams
from rtcore.request import EngineRequest, FinishReason, TokenDelta, TokenLogprobs
from rtcore.text.stream import TextDelta, TextStream
from tests.rtcore.text.vocabularies import byte_level, wrap

TOKENIZER = wrap(byte_level(), bos_id=0)
END = 1


def stream_of(prompt: str = "the", **params: Any) -> TextStream:
    ids = TOKENIZER.encode(prompt, add_special_tokens=False) or [0]
    return TextStream(TOKENIZER, EngineRequest("r", ids, SamplingParams(**params)))


def feed(
    stream: TextStream, parts: list[list[int]], finish: FinishReason, reason: int | str | None = None
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


def test_min_tokens_holds_for_stop_strings() -> None:
    """The text of the first min_tokens tokens is shown whatever it holds; after them the first stop ends it."""
    ids = encoded("the fox the fox the fox")
    for least in range(len(ids) + 1):
        stream = stream_of(stop=("fox",), min_tokens=least, max_tokens=100)
        deltas = feed(stream, [[token] for token in ids], "length")
        first = stream_of()
        shown = text_of(feed(first, [ids[:least]], "length")) if least else ""
        whole = text_of(feed(stream_of(), [ids], "length"))
        end = whole.find("fox", len(shown))
        assert text_of(deltas) == (whole if end < 0 else whole[:end])
        assert len(ids_of(deltas)) >= least
        assert (deltas[-1].cut or stream.finished) is True


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_an_echoed_prompt_begins_the_text_and_offsets_say_where_tokens_begin(size: int) -> None:
    prompt, answer = "the fox — ", "€ and 🦊 fox"
    ids = encoded(answer)
    stream = stream_of(prompt=prompt, echo=True, max_tokens=100)
    parts = [ids[begin : begin + size] for begin in range(0, len(ids), size)]
    deltas = feed(stream, parts, "length")
    text = text_of(deltas)
    assert text == prompt + answer
    assert [delta.begins for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    prompt_ids = encoded(prompt)
    offsets = [*stream.prompt_offsets, *(offset for delta in deltas for offset in delta.offsets)]
    assert len(offsets) == len(prompt_ids) + len(ids)
    assert offsets[0] == 0 and offsets == sorted(offsets)
    for place, offset in enumerate(offsets):
        known = [*prompt_ids, *ids][:place]
        # A character that is not complete yet begins where the next token begins.
        assert text[:offset] == TOKENIZER.decode(known).rstrip("\ufffd")


def test_a_prompt_that_ends_in_half_a_character_is_completed_by_the_answer() -> None:
    ids = encoded("a€b")
    half = next(count for count in range(1, len(ids)) if TOKENIZER.decode(ids[:count]).endswith("\ufffd"))
    request = EngineRequest("r", ids[:half], SamplingParams(echo=True, max_tokens=100))
    deltas = feed(TextStream(TOKENIZER, request), [ids[half:]], "length")
    assert text_of(deltas) == "a€b"


def test_log_probabilities_end_where_the_answer_does() -> None:
    told = [TokenLogprobs(-float(number), 1) for number in range(3)]
    ids = encoded(" fox")[:1] * 2
    stream = stream_of()
    last = stream.feed(TokenDelta("r", [*ids, END], "stop", logprobs=told))
    assert last.logprobs == told and last.shown == 2 and len(last.offsets) == 3
    stream = stream_of(stop=("fox",))
    cut = stream.feed(TokenDelta("r", [*encoded(" fox"), *ids], logprobs=told + told))
    assert cut.cut and len(cut.logprobs) == len(cut.token_ids) == len(cut.offsets) == cut.shown


def test_a_stop_rule_shows_the_token_that_it_ended_with() -> None:
    deltas = feed(stream_of(), [encoded(" fox")], "stop", "enough")
    assert text_of(deltas) == " fox" and deltas[-1].stop_reason == "enough"
