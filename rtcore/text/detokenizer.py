"""Text out of a growing sequence of tokens, with constant work for each token.

The text equals what the tokenizer's own decoder makes of prompt and generated ids together, less what it makes
of the prompt. Two rules follow for the seam: a character that begins in the prompt belongs to the prompt, and
a leading space is stripped only where the prompt shows no text.

Invalid bytes come out as U+FFFD, counted as the decoder counts them: one for each maximal ill-formed
subsequence in byte-level vocabularies, one for each byte with byte fallback. One difference is intended: where
a run of fallback bytes holds both whole characters and invalid bytes, `tokenizers` blanks the whole run;
here the characters stay, since they were shown before the invalid byte was seen.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from rtcore.text.pieces import Piece
from rtcore.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"

# The bytes of an unfinished UTF-8 character are three at most.
_LONGEST_UNFINISHED = 3

# What the codec's "surrogateescape" makes of an invalid byte.
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One sequence: `feed` each generated token in order, then `finish`."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._late = tokenizer.late_replacements
        self._stripped, self._to_strip = tokenizer.rules_leading
        self._first = True
        # Escaped, an invalid byte is one character each; replaced, a whole ill-formed subsequence is one.
        self._decoder = _utf8_decoder("replace" if tokenizer.byte_level else "surrogateescape")
        self._borrowed = 0
        self._start_after(prompt_ids)

    def feed(self, token_id: int) -> str:
        """The text that a token completes; empty while a character is unfinished."""
        piece = self._piece(token_id)
        return "" if piece is None else self._shown(self._decode(piece))

    def finish(self) -> str:
        """What is left: an unfinished character can no longer be completed and comes out as U+FFFD."""
        return self._shown(self._unborrowed(self._decoder.decode(b"", final=True)))

    def _start_after(self, prompt_ids: Sequence[int]) -> None:
        """Take over the state that the prompt leaves, from its two ends alone."""
        for token_id in prompt_ids:
            if not self._first and not self._to_strip:
                break
            self.feed(token_id)
        self._decoder.reset()
        tail: list[bytes] = []
        for token_id in reversed(prompt_ids):
            piece = self._piece(token_id)
            if isinstance(piece, str):
                break
            tail.append(piece or b"")
            if sum(map(len, tail)) >= _LONGEST_UNFINISHED:
                break
        self._decode_bytes(b"".join(reversed(tail)))
        self._borrowed = len(self._decoder.getstate()[0])
        if self._borrowed:
            self._to_strip = 0

    def _piece(self, token_id: int) -> Piece | None:
        """What a token adds, None for one that is not shown."""
        if token_id in self._skipped:
            return None
        piece = self._tokenizer.piece(token_id, self._first)
        if piece is not None:
            self._first = False
        return piece

    def _decode(self, piece: Piece) -> str:
        if isinstance(piece, bytes):
            return self._unborrowed(self._decode_bytes(piece))
        # Text ends a run of bytes, so a character begun there stays unfinished.
        return self._unborrowed(self._decoder.decode(b"", final=True)) + piece

    def _decode_bytes(self, data: bytes) -> str:
        text = self._decoder.decode(data)
        pending = self._decoder.getstate()[0]
        # Python's decoder waits for the third byte of a surrogate, which UTF-8 has no place for.
        if len(pending) == 2 and pending[0] == 0xED and pending[1] >= 0xA0:
            text += self._decoder.decode(b"", final=True)
        return text

    def _unborrowed(self, text: str) -> str:
        """Decoded bytes less the character that began in the prompt, invalid bytes as U+FFFD."""
        if text and self._borrowed:
            text = text[self._borrowed if _ESCAPED_BYTE.match(text) else 1 :]
            self._borrowed = 0
        return text if text.isascii() else _ESCAPED_BYTE.sub(REPLACEMENT, text)

    def _shown(self, text: str) -> str:
        for old, new in self._late:
            text = text.replace(old, new)
        while text and self._to_strip:
            if text[0] != self._stripped:
                self._to_strip = 0
                break
            text = text[1:]
            self._to_strip -= 1
        return text
