from __future__ import annotations

import codecs
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtcore.manifest import TextInfo
from rtcore.text.detokenizer import Detokenizer
from rtcore.text.tokenizer import Tokenizer
from tests.rtcore.text.vocabularies import MAKERS, wrap

ESCAPED = re.compile("[\udc80-\udcff]")
HALVES = [bytes([byte]) for byte in b"\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\xc3\xa9\xffA"]


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return wrap(MAKERS[kind](), bos_id=0)


def shown_text(tokenizer: Tokenizer, prompt: list[int], ids: list[int], skip: bool) -> str:
    detokenizer = Detokenizer(tokenizer, prompt, skip)
    return "".join(map(detokenizer.feed, ids)) + detokenizer.finish()


def byte_runs(tokenizer: Tokenizer, ids: list[int], skip: bool) -> list[bytes]:
    """The runs of fallback bytes among the shown tokens."""
    runs = [b""]
    for token_id in ids:
        if skip and token_id in tokenizer.special_ids:
            continue
        piece = tokenizer.piece(token_id)
        if isinstance(piece, bytes):
            runs[-1] += piece
        elif piece is not None:
            runs.append(b"")
    return runs


def mixed(run: bytes) -> bool:
    """Whether a run holds both whole characters and invalid bytes."""
    text = run.decode("utf-8", "surrogateescape")
    return bool(ESCAPED.search(text)) and bool(ESCAPED.sub("", text))


def seam(tokenizer: Tokenizer, ids: list[int], split: int, skip: bool) -> int:
    """Behind which token the text of a prompt ends: one that completes the character that the prompt begins.

    Fallback decoders spell what was begun as one U+FFFD a byte, and so as more characters than the whole one is.
    """
    begun = byte_runs(tokenizer, ids[:split], skip)
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    decoder.decode(begun[-1])
    unfinished = b"" if tokenizer.byte_level else decoder.getstate()[0]
    for end in range(split + 1, len(ids) + 1) if unfinished else ():
        runs = byte_runs(tokenizer, ids[:end], skip)
        if len(runs) > len(begun):
            break
        character = (unfinished + runs[-1][len(begun[-1]) :]).decode(errors="surrogateescape")
        if len(character) == 1 and not ESCAPED.search(character):
            return end
    return split


@cache
def token_ids(kind: str) -> st.SearchStrategy[list[int]]:
    """Ids of any kind, those that spell bytes of unfinished characters more often; some have no entry."""
    tokenizer = tokenizer_of(kind)
    by_bytes: dict[bytes, int] = {}
    for number in range(tokenizer.vocab_size):
        piece = tokenizer.piece(number)
        if isinstance(piece, bytes):
            by_bytes.setdefault(piece, number)
    spelled = st.sampled_from([by_bytes[piece] for piece in HALVES if piece in by_bytes] or [0])
    anything = st.integers(0, tokenizer.vocab_size + 2)
    one = st.one_of(spelled, anything, st.sampled_from(sorted(tokenizer.special_ids))) if by_bytes else anything
    return st.lists(one, max_size=14)


@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_split_equals_the_decoder_in_context(kind: str, data: st.DataObject, skip: bool) -> None:
    tokenizer = tokenizer_of(kind)
    ids = data.draw(token_ids(kind))
    split = data.draw(st.integers(0, len(ids)))
    prompt, generated = ids[:split], ids[split:]
    if not tokenizer.byte_level:
        runs = byte_runs(tokenizer, ids, skip) + byte_runs(tokenizer, prompt, skip)
        assume(not any(map(mixed, runs)))
    before = tokenizer.decode(ids[: seam(tokenizer, ids, split, skip)], skip)
    expected = tokenizer.decode(ids, skip)[len(before) :]
    assert shown_text(tokenizer, prompt, generated, skip) == expected


def test_what_follows_a_character_that_the_prompt_begins_is_whole() -> None:
    tokenizer = tokenizer_of("gemma_like")
    euro = [tokenizer.id_of(f"<0x{byte:02X}>") for byte in "€".encode()]
    ids = [number for number in euro if number is not None]
    for split in range(1, 3):
        assert shown_text(tokenizer, ids[:split], [*ids[split:], 0], skip=False) == "<s>"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_fallback_bytes_keep_the_characters_among_invalid_ones(data: st.DataObject) -> None:
    """Where the library blanks a whole run, each invalid byte alone is replaced here."""
    tokenizer = tokenizer_of("gemma_like")
    run = data.draw(st.lists(st.sampled_from(HALVES), min_size=1, max_size=10).map(b"".join))
    ids = [tokenizer.id_of(f"<0x{byte:02X}>") for byte in run]
    expected = ESCAPED.sub("\ufffd", run.decode("utf-8", "surrogateescape"))
    assert shown_text(tokenizer, [], [number for number in ids if number is not None], True) == expected


@pytest.mark.parametrize("kind", ["byte_level", "llama_like", "gemma_like", "gguf_like"])
@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd▁"), max_size=20))
def test_a_character_comes_when_it_is_complete_and_not_before(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    said = ""
    for count, token_id in enumerate(ids, start=1):
        said += detokenizer.feed(token_id)
        # The library blanks a run of fallback bytes of which the last character is unfinished.
        if not any(map(mixed, byte_runs(tokenizer, ids[:count], True))) or tokenizer.byte_level:
            assert said == tokenizer.decode(ids[:count]).rstrip("\ufffd")
    assert said + detokenizer.finish() == tokenizer.decode(ids)


def test_a_prompt_that_ends_in_half_a_character_leaks_nothing() -> None:
    tokenizer = tokenizer_of("byte_level")
    euro = [tokenizer.id_of(entry) for entry in "âĤ¬"]
    first, second, third = (number for number in euro if number is not None)
    after = tokenizer.encode("A", add_special_tokens=False)
    assert shown_text(tokenizer, [first, second], [third, *after], True) == "A"
    assert shown_text(tokenizer, [first, second], after, True) == "A"
    assert shown_text(tokenizer, [first, second], [], True) == ""
    assert shown_text(tokenizer, [], [first, second], True) == "\ufffd"
    assert shown_text(tokenizer, [], [first, second, third], True) == "€"


def test_the_first_space_is_stripped_only_where_a_text_begins() -> None:
    tokenizer = tokenizer_of("llama_like")
    the, bos = tokenizer.id_of("▁the"), tokenizer.bos_id
    assert the is not None and bos is not None
    assert shown_text(tokenizer, [], [the, the], True) == "the the"
    assert shown_text(tokenizer, [bos], [the, the], True) == "the the"
    assert shown_text(tokenizer, [bos], [the, the], False) == " the the"
    assert shown_text(tokenizer, [bos, the], [the, the], True) == " the the"


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_shown_on_request(skip: bool) -> None:
    tokenizer = tokenizer_of("byte_level")
    ids = [*tokenizer.encode("a", add_special_tokens=False), 2, *tokenizer.encode("<think>b")]
    assert shown_text(tokenizer, [], ids, skip) == ("a<think>b" if skip else "a<|im_start|><think>b")


@settings(max_examples=200, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_the_real_vocabulary_too(smollm2_bundle: Path, data: st.DataObject, skip: bool) -> None:
    tokenizer = real_tokenizer(smollm2_bundle)
    single_bytes = st.sampled_from(single_byte_ids(smollm2_bundle))
    ids = data.draw(st.lists(st.one_of(st.integers(0, tokenizer.vocab_size - 1), single_bytes), max_size=16))
    split = data.draw(st.integers(0, len(ids)))
    expected = tokenizer.decode(ids, skip)[len(tokenizer.decode(ids[:split], skip)) :]
    assert shown_text(tokenizer, ids[:split], ids[split:], skip) == expected


@cache
def real_tokenizer(bundle: Path) -> Tokenizer:
    return Tokenizer.open(bundle / "tokenizer" / "tokenizer.json", TextInfo())


@cache
def single_byte_ids(bundle: Path) -> list[int]:
    tokenizer = real_tokenizer(bundle)
    return [number for number in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(number)) == 1]
