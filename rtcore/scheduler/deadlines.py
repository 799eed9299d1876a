"""Deadlines: which sequences have waited or run too long."""

from __future__ import annotations

from ops.errors import DeadlineExceeded
from rtcore.scheduler.heap import KeyedHeap
from rtcore.sequence import Sequence


class Deadlines:
    """The times at which sequences expire: in the queue, if they have not been started by then, and in all."""

    def __init__(self) -> None:
        self._start: KeyedHeap[Sequence] = KeyedHeap()
        self._end: KeyedHeap[Sequence] = KeyedHeap()

    def add(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.queue_timeout is not None:
            self._start.push(sequence.submitted + request.queue_timeout, sequence)
        if request.timeout is not None:
            self._end.push(sequence.submitted + request.timeout, sequence)

    def started(self, sequence: Sequence) -> None:
        """The sequence left the queue: from now on only its total time counts."""
        self._start.discard(sequence)

    def discard(self, sequence: Sequence) -> None:
        self._start.discard(sequence)
        self._end.discard(sequence)

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose time is over; they are no longer kept here."""
        found = []
        for heap in (self._start, self._end):
            while (entry := heap.first()) is not None and entry[0] <= now:
                self.discard(entry[1])
                found.append(entry[1])
        return found


def too_late(sequence: Sequence) -> DeadlineExceeded:
    """The error of a sequence that has expired."""
    request = sequence.request
    if sequence.started is None and request.queue_timeout is not None:
        return DeadlineExceeded(
            "The request waited longer than it may.", why=f"It allows {request.queue_timeout:g} s."
        )
    return DeadlineExceeded("The request took longer than it may.", why=f"It allows {request.timeout:g} s.")
