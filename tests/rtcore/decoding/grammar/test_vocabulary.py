"""Tokens as bytes, for the three ways in which tokenizers spell them."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rtcore.decoding.grammar.source import new_matcher
from rtcore.decoding.grammar.spec import StructuredOutputs
from rtcore.decoding.grammar.state import GrammarState
from rtcore.decoding.grammar.vocabulary import GrammarVocabulary
from rtcore.manifest import TextInfo
from rtcore.text.tokenizer import Tokenizer as TextTokenizer


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({character: number for number, character in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def byte_fallback() -> Tokenizer:
    entries = ["▁a", "b", *[f"<0x{byte:02X}>" for byte in range(256)]]
    inner = Tokenizer(models.BPE({entry: number for number, entry in enumerate(entries)}, [], byte_fallback=True))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return inner


def sentencepiece() -> Tokenizer:
    entries = ["▁a", "b", "é", "日"]
    inner = Tokenizer(models.Unigram([(entry, -1.0) for entry in entries], unk_id=None))
    inner.decoder = decoders.Metaspace()
    return inner


def prefixing() -> Tokenizer:
    """Begins every text with a space, as the tokenizers of the first Llamas do."""
    inner = byte_fallback()
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return inner


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (byte_level(), "aé日\n".encode()),
        (byte_fallback(), " a\u65e5b".encode()),
        (sentencepiece(), " abé日".encode()),
    ],
    ids=["byte-level", "byte-fallback", "sentencepiece"],
)
def test_a_grammar_sees_the_bytes_that_a_reader_sees(inner: Tokenizer, text: bytes) -> None:
    inner.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer = TextTokenizer(inner, TextInfo())
    stop = tokenizer.id_of("</s>")
    assert stop is not None
    vocabulary = GrammarVocabulary.of(tokenizer, tokenizer.vocab_size + 5, (stop,))
    assert len(vocabulary.tokens) == tokenizer.vocab_size + 5
    assert vocabulary.tokens[-5:] == [b""] * 5
    ids = _split(vocabulary, text)
    matcher = new_matcher(vocabulary.tokenizer(), "choice", f'["{text.decode()!s}"]'.replace("\n", "\\n"))
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()
    assert matcher.consume_token(stop)


def _split(vocabulary: GrammarVocabulary, text: bytes) -> list[int]:
    """Tokens whose bytes make up the text, the shortest first."""
    ids = []
    while text:
        token = min(
            (number for number, entry in enumerate(vocabulary.tokens) if entry and text.startswith(entry)),
            key=lambda number: len(vocabulary.tokens[number]),
        )
        ids.append(token)
        text = text[len(vocabulary.tokens[token]) :]
    return ids


def test_special_tokens_are_no_text() -> None:
    inner = byte_level()
    inner.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer = TextTokenizer(inner, TextInfo())
    stop = tokenizer.id_of("<|end|>")
    assert stop is not None
    vocabulary = GrammarVocabulary.of(tokenizer, tokenizer.vocab_size, (stop,))
    matcher = new_matcher(vocabulary.tokenizer(), "regex", r"<\|end\|>x")
    assert matcher.validate_tokens([stop]) == 0


@pytest.mark.parametrize(
    "inner", [byte_level(), byte_fallback(), prefixing()], ids=["byte-level", "fallback", "prefix"]
)
def test_what_looks_special_stays_text_and_every_forced_text_can_come(inner: Tokenizer) -> None:
    """Where a grammar leaves no choice, its masks say one token: it must be of the text's own bytes, whatever the
    tokenizer would make of the text alone."""
    inner.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer = TextTokenizer(inner, TextInfo())
    stop = tokenizer.id_of("</s>")
    assert stop is not None
    vocabulary = GrammarVocabulary.of(tokenizer, tokenizer.vocab_size, (stop,))
    llt = vocabulary.tokenizer(lambda text: tokenizer.encode(text, add_special_tokens=False))
    for text in ("b</s>b", "bb b", " b"):
        spec = StructuredOutputs(choice=(text,))
        state = GrammarState(
            new_matcher(llt, spec.kind, spec.source), spec, frozenset({stop}), len(vocabulary.tokens)
        )
        ids: list[int] = []
        while stop not in ids:
            mask = state.masks((), frozenset(), 0)[0]
            ids.append(int(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[-1]))
            if ids[-1] != stop:
                state.accept(ids[-1:])
        assert state.error is None
        assert b"".join(vocabulary.tokens[token] for token in ids[:-1]).decode() == text


def test_longest_tokens_first_where_no_tokenizer_is_given() -> None:
    vocabulary = GrammarVocabulary([b"a", b"ab", b"c", b"</s>"], [3], [3])
    assert vocabulary.tokenizer().tokenize_str("abac") == [1, 0, 2]
