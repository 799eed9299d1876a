"""The known name that a wrong one most likely stands for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, or None when none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return close[0] if close else None
