"""What one rendering of a chat template may use: steps, processor time, and the size of what it makes."""

from __future__ import annotations

import re
import time
from typing import Any

from jinja2.exceptions import TemplateError

MAX_STEPS = 1_000_000
MAX_SECONDS = 2.0
MAX_CHARACTERS = 1 << 23
MAX_TOTAL = 1 << 28
MAX_BITS = 4096
MAX_WIDTH = 4096

# An entry of a list costs a reference, as much as this many characters at least.
_ENTRY = 8

_SIZED = (str, list, tuple)

# Asking for a thread's time is a system call, so not every step does.
_STEPS_A_LOOK = 16

# A width in a format is digits, or taken from an argument: `%*d`, `{:{}}`.
_WIDE_FORMAT = re.compile(r"\d{5,}|\*|\{[^}]*\{")

# Filters and string methods that a number makes large.
_WIDENING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "tojson"))

# Filters and string methods that write out whole values.
_WRITING = frozenset(("tojson", "string", "pprint", "join", "format", "format_map", "xmlattr", "urlencode"))


class TemplateTooCostly(TemplateError):
    """A template used up its budget."""


class Budget:
    """What is left for one rendering. The time is the thread's own, so a busy machine refuses no template."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._characters = MAX_TOTAL
        self._look = MAX_STEPS
        self._deadline = time.thread_time() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        """Charge rounds of a loop, calls or operations."""
        self._steps -= count
        if self._steps < 0:
            raise TemplateTooCostly(f"It takes more than {MAX_STEPS} steps.")
        if self._steps <= self._look:
            self._look = self._steps - _STEPS_A_LOOK
            if time.thread_time() > self._deadline:
                raise TemplateTooCostly(f"It takes more than {MAX_SECONDS:g} seconds.")

    def grow(self, size: int) -> None:
        """Charge the characters of a text that is about to be made, or was."""
        self._characters -= size
        if size > MAX_CHARACTERS:
            raise TemplateTooCostly(f"It makes a text of more than {MAX_CHARACTERS} characters.")
        if self._characters < 0:
            raise TemplateTooCostly(f"It makes texts of more than {MAX_TOTAL} characters together.")

    def made(self, value: Any) -> None:
        """Charge a new text or list."""
        if isinstance(value, str):
            self.grow(len(value))
        elif isinstance(value, list | tuple):
            self.grow(len(value) * _ENTRY)

    def written(self, value: Any) -> int:
        """About how long `value` is when written out; raises as soon as that is too long.

        A list may hold one long text many times, so its written form is not bounded by what was charged for.
        """
        size = 0
        left = [value]
        while left:
            item = left.pop()
            if isinstance(item, str):
                size += len(item)
            else:
                size += _ENTRY
                if isinstance(item, dict):
                    left += item
                    left += item.values()
                elif isinstance(item, list | tuple):
                    left += item
            if size + len(left) > MAX_CHARACTERS:
                raise TemplateTooCostly(f"It writes a value of more than {MAX_CHARACTERS} characters.")
        return size

    def before(self, name: str, values: tuple[Any, ...]) -> None:
        """Charge what the filter, method or function `name` is about to make of `values`."""
        self.step()
        texts = [value for value in values if isinstance(value, str)]
        if name in _WIDENING:
            widths = [value for value in values if isinstance(value, int)]
            if any(width > MAX_WIDTH for width in widths):
                raise TemplateTooCostly(f"It asks {name} for more than {MAX_WIDTH}.")
            lines = texts[0].count("\n") + 1 if texts else 0
            self.grow(lines * max(0, *widths, *map(len, texts[1:]), 0))
        if name in _WRITING:
            for value in values:
                self.grow(self.written(value))
        if name == "replace" and len(texts) >= 3:
            text, old, new = texts[-3:]
            self.grow(len(text) + text.count(old) * len(new))
        elif name == "join":
            entries = max((len(value) for value in values if isinstance(value, list | tuple | dict)), default=0)
            self.grow(entries * max(map(len, texts), default=0))
        elif name in ("format", "format_map"):
            self.format_widths(texts)

    def format_widths(self, texts: list[str]) -> None:
        """Refuse formats that pad to a great or a computed width."""
        if any(_WIDE_FORMAT.search(text) for text in texts[:1]):
            raise TemplateTooCostly("It formats to a width that is computed or too large.")

    def operation(self, operator: str, left: Any, right: Any) -> None:
        """Charge what `left operator right` is about to make."""
        self.step()
        if operator == "+" and isinstance(left, _SIZED) and isinstance(right, _SIZED):
            self.grow((len(left) + len(right)) * (1 if isinstance(left, str) else _ENTRY))
        elif operator == "%" and isinstance(left, str):
            self.format_widths([left])
            self.grow(len(left) + self.written(right))
        elif isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * abs(right)
            if bits > MAX_BITS:
                raise TemplateTooCostly("It computes a number that is too large.")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, _SIZED) and isinstance(times, int):
                    self.grow(len(many) * max(times, 0) * (1 if isinstance(many, str) else _ENTRY))
