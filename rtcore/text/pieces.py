"""How a tokenizer's decoder turns one vocabulary entry into text, read from the decoder's own description.

The decoders of `tokenizers` work on whole sequences; a stream needs to know what a single token adds. The ones
that language models use come down to these rules, and any other is refused by name when a bundle is opened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from ops.errors import BundleError

Piece = str | bytes
"""What one token adds: text that is whole in itself, or bytes that may be part of a character."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of byte-level BPE (GPT-2): character -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + offset): byte for offset, byte in enumerate(others)})
    return alphabet


BYTE_OF = _byte_alphabet()


@dataclass(frozen=True)
class PieceRules:
    """The rules of one decoder.

    byte_level: entries are spelled in the byte alphabet of GPT-2. byte_fallback: `<0xE2>` is a byte. early:
    replacements within an entry. late: replacements of single characters in decoded text. drop_first: the
    character that is dropped from the first entry of a sequence. joiner: written before every entry but the
    first. leading: character and how many of it are stripped at the very beginning of a text.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    early: tuple[tuple[str, str], ...] = ()
    late: tuple[tuple[str, str], ...] = ()
    drop_first: str = ""
    joiner: str = ""
    leading: tuple[str, int] = ("", 0)

    def piece(self, entry: str, first: bool) -> Piece:
        """What the vocabulary entry adds; `first` where no entry came before it in its sequence."""
        if self.byte_level:
            try:
                return bytes(BYTE_OF[character] for character in entry)
            except KeyError:
                # Only added tokens are spelled outside the alphabet; they stand for themselves.
                return entry.encode()
        if self.drop_first and first:
            entry = entry.replace(self.drop_first, "")
        for old, new in self.early:
            entry = entry.replace(old, new)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(entry)):
            return bytes.fromhex(match[1])
        return entry if first else self.joiner + entry


def read_rules(description: dict[str, Any] | None) -> PieceRules:
    """The rules of a decoder, given as in tokenizer.json (None: no decoder).

    Raises BundleError for a decoder whose effect a single token does not show.
    """
    if description is None:
        return PieceRules(joiner=" ")
    rules = PieceRules()
    steps = description["decoders"] if description["type"] == "Sequence" else [description]
    joined = False
    for number, step in enumerate(steps):
        match step:
            case {"type": "ByteLevel"}:
                rules = replace(rules, byte_level=True, byte_fallback=False)
                joined = True
            case {"type": "ByteFallback"}:
                rules = replace(rules, byte_fallback=True)
                # From here on a replacement also sees the text that bytes were turned into.
                joined = True
            case {"type": "Fuse"}:
                joined = True
            case {"type": "Metaspace", "replacement": old, "prepend_scheme": scheme} if not joined:
                drop = "" if scheme == "never" else old
                rules = replace(rules, early=(*rules.early, (old, " ")), drop_first=drop)
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not joined:
                rules = replace(rules, early=(*rules.early, (old, new)))
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if len(old) == 1:
                rules = replace(rules, late=(*rules.late, (old, new)))
            case {"type": "Strip", "content": content, "start": start, "stop": 0} if (
                joined and number == len(steps) - 1
            ):
                rules = replace(rules, leading=(content, start))
            case _:
                raise BundleError(
                    f"The tokenizer's decoder step {step.get('type')!r} is not supported here.",
                    why="Text is streamed token by token, and this step cannot be.",
                    remedy="Use a tokenizer with a byte-level, byte-fallback or metaspace decoder.",
                )
    return rules
