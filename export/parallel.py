"""Row chunks made side by side and given out in order: numpy gives up the interpreter lock while it computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from rtcore.machine import available_cores

Chunk = NDArray[Any]


def ordered(make: Callable[[int, int], Chunk], spans: Iterable[tuple[int, int]]) -> Iterator[Chunk]:
    """make(start, stop) of each span, in order; as many are in the making as this process may use cores.

    What `make` raises is raised here, in its chunk's turn.
    """
    workers = available_cores()
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[Chunk]] = deque()
        try:
            for start, stop in spans:
                pending.append(pool.submit(make, start, stop))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
