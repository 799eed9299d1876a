"""MaskWorker: the masks of a step's sequences, computed while the model runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rtcore.decoding.grammar.limits import MASK_SECONDS
from rtcore.decoding.grammar.state import ALL, GrammarState, Words


@dataclass(slots=True)
class MaskJob:
    """What is needed of one sequence.

    tokens: generated ones that its state has not followed yet. drafts: that the step verifies. own_stops, held:
    see GrammarState.masks. rows: the result, uint32 [len(drafts) + 1, words].
    """

    state: GrammarState
    tokens: Sequence[int]
    drafts: Sequence[int] = ()
    own_stops: frozenset[int] = frozenset()
    held: int = 0
    rows: Words = field(default_factory=lambda: np.zeros((0, 0), np.uint32))

    def run(self) -> None:
        self.state.accept(self.tokens)
        self.rows = self.state.masks(self.drafts, self.own_stops, self.held)


class _Batch:
    """Jobs that one thread takes one after the other."""

    def __init__(self, jobs: list[MaskJob]) -> None:
        self.jobs = jobs
        self.done = 0
        self.abandoned = False
        self.finished = threading.Event()

    def run(self) -> None:
        for job in self.jobs:
            try:
                job.run()
            except Exception as error:
                # The library has no errors of its own; whatever it is, it ends this sequence only.
                job.state.fail(f"{type(error).__name__}: {error}")
            if self.abandoned:
                return
            self.done += 1
        self.finished.set()


class MaskWorker:
    """One thread, started with the first job. The library lets other threads run while it computes.

    A sequence whose mask takes too long ends with an error, and its thread is left to itself: another one takes
    its place, so that nobody else waits for it again.
    """

    def __init__(self, seconds: float = MASK_SECONDS) -> None:
        """seconds: how long `finish` waits for any one sequence."""
        self._seconds = seconds
        self._queue: queue.SimpleQueue[_Batch | None] | None = None
        self._batch: _Batch | None = None

    def settle(self) -> None:
        """Wait for jobs that were begun and not finished, because the step failed in between."""
        if self._batch is not None:
            self.finish()

    def begin(self, jobs: list[MaskJob]) -> None:
        """Start on jobs, of different sequences; to be ended by `finish` before any of them is touched again."""
        self._batch = _Batch(jobs)
        if self._queue is None:
            self._queue = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._queue,), name="masks", daemon=True).start()
        self._queue.put(self._batch)

    def finish(self) -> None:
        """Wait until every job has its rows; the first of a sequence that ended with an error allows all."""
        batch, self._batch = self._batch, None
        while batch is not None:
            jobs, done = batch.jobs, -1
            while not batch.finished.is_set() and batch.done > done:
                done = batch.done
                batch.finished.wait(self._seconds)
            if batch.finished.is_set():
                for job in jobs:
                    if not len(job.rows):
                        self._give_up(job)
                return
            batch.abandoned = True
            self.close()
            late = jobs[done]
            late.state.fail(f"The next token takes longer than {self._seconds:g} s")
            self._give_up(late)
            for job in jobs[:done]:
                if not len(job.rows):
                    self._give_up(job)
            rest = jobs[done + 1 :]
            if not rest:
                return
            self.begin(rest)
            batch, self._batch = self._batch, None

    @staticmethod
    def _give_up(job: MaskJob) -> None:
        job.rows = np.zeros((len(job.drafts) + 1, job.state.words), np.uint32)
        job.rows[0] = ALL

    def close(self) -> None:
        """Let the thread end after what it does now. Safe to call twice."""
        waiting, self._queue = self._queue, None
        if waiting is not None:
            waiting.put(None)


def _serve(batches: queue.SimpleQueue[_Batch | None]) -> None:
    while (batch := batches.get()) is not None:
        batch.run()
