"""The tokenizer of a bundle: text to ids, and ids to the pieces of text that they stand for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from ops.errors import BundleDamaged, InvalidRequest
from rtcore.manifest import TextInfo
from rtcore.text.pieces import Piece, read_rules

TOKENIZER_FILE = "tokenizer.json"


class Tokenizer:
    """A `tokenizers` tokenizer and what the manifest says of it."""

    def __init__(self, inner: tokenizers.Tokenizer, info: TextInfo) -> None:
        """Raises BundleError where the tokenizer's decoder cannot be streamed."""
        # A checkpoint's tokenizer.json may carry settings of its training: a prompt is never cut or padded.
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._rules = read_rules(json.loads(inner.decoder.__getstate__()) if inner.decoder else None)
        self._pieces: dict[int, Piece | None] = {}
        added = inner.get_added_tokens_decoder()
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        self.vocab_size: int = inner.get_vocab_size(with_added_tokens=True)
        self.bos_id = info.bos_id
        self._add_bos = info.add_bos and info.bos_id is not None
        # What the tokenizer's own post-processor puts before a text, if anything.
        self._writes_bos = inner.encode("", add_special_tokens=True).ids[:1] == [info.bos_id]

    @classmethod
    def open(cls, path: Path, info: TextInfo) -> Tokenizer:
        """Read a tokenizer.json. Raises BundleDamaged where it cannot be read."""
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        # The library raises bare Exception for whatever is wrong with the file.
        except Exception as error:
            raise BundleDamaged(
                f"The tokenizer {path} cannot be read.", why=str(error), remedy="Export the bundle again."
            ) from error
        return cls(inner, info)

    @property
    def rules_leading(self) -> tuple[str, int]:
        """The character, and how many of it, that are stripped at the very beginning of a text."""
        return self._rules.leading

    @property
    def late_replacements(self) -> tuple[tuple[str, str], ...]:
        """Replacements of single characters in decoded text."""
        return self._rules.late

    @property
    def byte_level(self) -> bool:
        """Whether every entry is a string of bytes."""
        return self._rules.byte_level

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; with special tokens it begins as a prompt of this model does (BOS or not).

        Raises InvalidRequest where the text is not Unicode (lone surrogates).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"The text has a lone surrogate at character {error.start}.",
                why="It is no valid Unicode and stands for no character.",
                remedy="Send whole characters.",
            ) from error
        # As a batch of one: only batches let other threads run meanwhile, and this one computes no offsets.
        encoded = self._inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        ids: list[int] = encoded.ids
        if add_special_tokens and self._add_bos != self._writes_bos:
            return [self.bos_id, *ids] if self.bos_id is not None and self._add_bos else ids[1:]
        return ids

    def spell_special_tokens(self) -> None:
        """From now on encode what looks like a special token as the text that it is, never as the token."""
        self._inner.encode_special_tokens = True

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids by themselves, in no context."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def entry(self, token_id: int) -> str | None:
        """How the vocabulary spells an id; None where the model has more ids than the tokenizer."""
        entry: str | None = self._inner.id_to_token(token_id)
        return entry

    def id_of(self, entry: str) -> int | None:
        """The id of a vocabulary entry."""
        number: int | None = self._inner.token_to_id(entry)
        return number

    def piece(self, token_id: int, first: bool = False) -> Piece | None:
        """What a token adds to a text; `first` where no token came before it; None where the id has no entry."""
        if first:
            entry = self.entry(token_id)
            return None if entry is None else self._rules.piece(entry, first=True)
        try:
            return self._pieces[token_id]
        except KeyError:
            entry = self.entry(token_id)
            piece = None if entry is None else self._rules.piece(entry, first=False)
            self._pieces[token_id] = piece
            return piece

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token adds in the middle of a text; empty where the id has no entry.

        A byte token gives its byte, a SentencePiece space a space, and a special token its own spelling.
        """
        piece = self.piece(token_id)
        if isinstance(piece, str):
            for old, new in self._rules.late:
                piece = piece.replace(old, new)
            return piece.encode()
        return piece or b""

    def token_text(self, token_id: int) -> str:
        """The text of a token by itself; where its bytes are no whole characters, "bytes:" and each as \\xNN.

        So OpenAI's API names such tokens; unlike U+FFFD it tells them apart.
        """
        data = self.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
