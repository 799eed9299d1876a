"""What an export tells while it works: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TextIO

from export.staging import size_text
from export.weights import Progress

LINE_SECONDS = 10.0


class Reporter:
    """Writes stages and the progress of bytes to standard error."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._bars = self._stream.isatty() and find_spec("rich") is not None

    def stage(self, text: str) -> None:
        """One line: what is done next."""
        print(text, file=self._stream, flush=True)

    @contextlib.contextmanager
    def writing(self, text: str, total: int) -> Iterator[Progress]:
        """A function to be told of written bytes, of `total` in all."""
        context = self._bar(text, total) if self._bars else self._lines(text, total)
        with context as advance:
            yield advance

    @contextlib.contextmanager
    def _bar(self, text: str, total: int) -> Iterator[Progress]:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Bars(*columns, TimeRemainingColumn(), console=Console(file=self._stream)) as bars:
            task = bars.add_task(text, total=total)
            yield lambda count: bars.advance(task, count)

    @contextlib.contextmanager
    def _lines(self, text: str, total: int) -> Iterator[Progress]:
        written, last, start = 0, time.monotonic(), time.monotonic()
        self.stage(f"{text}: {size_text(total)}")

        def advance(count: int) -> None:
            nonlocal written, last
            written += count
            now = time.monotonic()
            if now - last >= LINE_SECONDS:
                last = now
                self.stage(f"{text}: {100 * written // max(1, total)} % of {size_text(total)}")

        yield advance
        self.stage(f"{text}: done in {time.monotonic() - start:.1f} s")
