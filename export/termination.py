"""A termination signal ends an export like an interrupt: what was half written is removed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: The exit code that shells expect of a process that SIGTERM ended.
TERMINATED = 128 + signal.SIGTERM


@contextmanager
def clean_termination() -> Iterator[None]:
    """While within, SIGTERM raises SystemExit. Only for the main thread of a process."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
