"""Text of a model on a terminal."""

from __future__ import annotations

import re
import sys
from typing import TextIO

# Control characters but line feed and tab: a model must not move the cursor or retitle the window.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def show(text: str, to: TextIO | None = None) -> None:
    """Write text at once. On a terminal, control characters are shown as symbols; elsewhere they are kept."""
    stream = to or sys.stdout
    if stream.isatty():
        text = _CONTROLS.sub(_symbol, text)
    encoding = stream.encoding or "utf-8"
    # A terminal of another encoding shows what it can.
    stream.write(text.encode(encoding, errors="replace").decode(encoding))
    stream.flush()


def _symbol(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"
