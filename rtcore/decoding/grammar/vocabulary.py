"""GrammarVocabulary: a model's tokens as bytes, which is what grammars are about."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from ops.errors import UnsupportedParameter
from rtcore.bundle import Bundle
from rtcore.manifest import TOKENIZER_FOLDER
from rtcore.text.tokenizer import TOKENIZER_FILE, Tokenizer

Encode = Callable[[str], list[int]]
LoadVocabulary = Callable[[], tuple["GrammarVocabulary", Encode]]
"""Gives the tokens of a model and its tokenizer's function from text to ids."""


class GrammarVocabulary(msgspec.Struct, frozen=True):
    """tokens: of every id its bytes in the middle of a text, empty for ids that stand for none. special: ids that
    are no text, so no grammar of text allows them. stop_ids: of them, those that end an answer; at least one."""

    tokens: list[bytes]
    special: list[int]
    stop_ids: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, stop_ids: tuple[int, ...]) -> GrammarVocabulary:
        """The vocabulary of a model with logits for `vocab_size` ids, which may be more than its tokenizer has.

        Bytes come from the rules by which text is streamed, so a grammar sees what the user sees: right for
        byte-level BPE, for byte fallback and for SentencePiece's spaces.
        """
        tokens = [tokenizer.token_bytes(token) for token in range(vocab_size)]
        special = {token for token in (*tokenizer.special_ids, *stop_ids) if token < vocab_size}
        return cls(tokens, sorted(special), list(stop_ids))

    def tokenizer(self, encode: Encode | None = None) -> Any:
        """An LLTokenizer; encode: text to ids, by default the longest token at each place.

        Takes some hundred milliseconds.
        """
        from llguidance import LLTokenizer

        adapter: Any = _Adapter(self, encode)
        return LLTokenizer(adapter, n_vocab=len(self.tokens), eos_token=self.stop_ids)


class _Adapter:
    """The attributes that LLTokenizer reads of a tokenizer that is not its own."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: GrammarVocabulary, encode: Encode | None) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special
        self.eos_token_id = vocabulary.stop_ids[0]
        self._special = frozenset(vocabulary.special)
        self._encode = encode
        self._ids = {
            token: number for number, token in enumerate(self.tokens) if token and number not in self._special
        }
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: str | bytes) -> list[int]:
        """Ids that stand for exactly these bytes: where a grammar leaves no choice, they are what comes."""
        data = text.encode() if isinstance(text, str) else text
        if self._encode is not None:
            ids = self._encode(data.decode(errors="replace"))
            # Some tokenizers begin a text with a space of their own, and take what looks special for special.
            if b"".join(self.tokens[token] for token in ids) == data and self._special.isdisjoint(ids):
                return ids
        return self._split(data)

    def _split(self, data: bytes) -> list[int]:
        """The longest token at each place."""
        ids, place = [], 0
        while place < len(data):
            for size in range(min(self._longest, len(data) - place), 0, -1):
                token = self._ids.get(data[place : place + size])
                if token is not None:
                    ids.append(token)
                    break
            else:
                return ids  # a byte that no token has: what follows cannot be written in this vocabulary
            place += size
        return ids


def vocabulary_of(bundle: Bundle, vocab_size: int) -> LoadVocabulary:
    """What reads the vocabulary of a bundle, once somebody needs it: engines otherwise know no text."""
    path, text = bundle.file(f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}"), bundle.manifest.text

    def load() -> tuple[GrammarVocabulary, Encode]:
        if not text.stop_ids:
            raise UnsupportedParameter(
                "This model has no token that ends an answer, so no grammar can end either.",
                param="structured_outputs",
            )
        tokenizer = Tokenizer.open(path, text)
        # A text that a grammar asks for may look like the token that ends an answer, and must not become it.
        tokenizer.spell_special_tokens()
        return GrammarVocabulary.of(tokenizer, vocab_size, text.stop_ids), partial(
            tokenizer.encode, add_special_tokens=False
        )

    return load


def no_vocabulary() -> tuple[GrammarVocabulary, Encode]:
    """For engines without a bundle. Raises UnsupportedParameter."""
    raise UnsupportedParameter(
        "This engine was loaded without a vocabulary.",
        why="Grammars are about the text of tokens.",
        param="structured_outputs",
    )
