"""A vocabulary of single printable characters, for grammars without a model."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rtcore.decoding.grammar.source import new_matcher
from rtcore.decoding.grammar.spec import StructuredOutputs
from rtcore.decoding.grammar.state import GrammarState, Words
from rtcore.decoding.grammar.vocabulary import Encode, GrammarVocabulary

VOCAB_SIZE = 97
STOP = 2
FIRST = 3
"""Ids 0 to 2 are special; the others are the characters from the space on."""


def encode(text: str) -> list[int]:
    return [FIRST + ord(character) - 32 for character in text]


def decode(ids: list[int]) -> str:
    return "".join(chr(token - FIRST + 32) for token in ids if token >= FIRST)


def load_words() -> tuple[GrammarVocabulary, Encode]:
    tokens = [b"", b"", b""] + [bytes([32 + number]) for number in range(VOCAB_SIZE - FIRST)]
    return GrammarVocabulary(tokens, [0, 1, STOP], [STOP]), encode


@cache
def tokenizer() -> Any:
    vocabulary, function = load_words()
    return vocabulary.tokenizer(function)


def state_of(**spec: Any) -> GrammarState:
    asked = StructuredOutputs(**spec)
    return GrammarState(new_matcher(tokenizer(), asked.kind, asked.source), asked, frozenset({STOP}), VOCAB_SIZE)


def allowed(row: Words) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCAB_SIZE]).tolist())
