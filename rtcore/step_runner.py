"""StepRunner: a step's works, all at once, and after a failure in ever smaller parts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ops.errors import EngineDied, EngineError
from rtcore.decoding.stage import DecodingStage, Drawn
from rtcore.executor.base import Executor
from rtcore.scheduler.base import Work
from rtcore.scheduler.batch import BatchBuilder
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.scheduler.outcome import Outcome
from rtcore.sequence import Sequence

logger = logging.getLogger(__name__)

_MAX_LONE_FAILURES = 3


@dataclass(slots=True)
class Ran:
    """What works came to.

    drawn: of the sequences whose works are committed. failed: sequences that fail alone, to be ended. died: why
    nothing can run any more.
    """

    outcome: Outcome = Outcome.COMMITTED
    drawn: list[Drawn] = field(default_factory=list)
    failed: list[tuple[Sequence, EngineError]] = field(default_factory=list)
    died: EngineDied | None = None


class StepRunner:
    """Runs and commits works, or gives back what they had reserved.

    After a failure of all together the next works run in parts, down to single requests, so that only what fails
    alone ends. When `_MAX_LONE_FAILURES` requests in a row fail alone without any success in between, or the
    executor says that it died, nothing runs any more. Attributes: steps, aborted, prefilled: counts of steps that
    ran, of those that were given back, and of tokens of prompts.
    """

    def __init__(
        self,
        executor: Executor,
        batch: BatchBuilder,
        decoding: DecodingStage,
        scheduler: LaneScheduler,
        clock: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._batch = batch
        self._decoding = decoding
        self._scheduler = scheduler
        self._clock = clock
        self._isolate = False
        self._lone_failures = 0
        self.steps = self.aborted = self.prefilled = 0

    def run(self, works: list[Work]) -> Ran:
        """Run the works of a step that was scheduled and prepared."""
        return self._run_parts(works) if self._isolate else self._run_whole(works)

    def _run_whole(self, works: list[Work]) -> Ran:
        """Run all work at once; on failure give everything back and have the next step isolate the cause."""
        ran = Ran()
        error = self._try(works, ran)
        if error is None:
            return ran
        self._scheduler.rollback(works)
        self.aborted += 1
        if isinstance(error, EngineDied):
            ran.died = error
            return ran
        logger.warning("A step of %d sequences failed and is tried again in parts: %s", len(works), error)
        self._isolate = True
        ran.outcome = Outcome.RETRYABLE_ABORT
        return ran

    def _run_parts(self, works: list[Work]) -> Ran:
        """Run halves of the work, and halves of what fails of them, down to single requests."""
        self._isolate = False
        ran = Ran()
        middle = (len(works) + 1) // 2
        parts = [part for part in (works[middle:], works[:middle]) if part]
        while parts:
            part = parts.pop()
            error = self._try(part, ran)
            if error is not None and len(part) == 1 and part[0].tokens > 1:
                part = [_less(part[0])]
                error = self._try(part, ran)
            if error is None:
                continue
            if isinstance(error, EngineDied):
                ran.died = error
                return ran
            if len(part) > 1:
                middle = (len(part) + 1) // 2
                parts += [part[middle:], part[:middle]]
                continue
            logger.error("Request %s fails alone and is ended: %s", part[0].sequence.request.id, error)
            ran.failed.append((part[0].sequence, error))
            ran.outcome = Outcome.UNSERVICEABLE
            self._lone_failures += 1
            if self._lone_failures >= _MAX_LONE_FAILURES:
                ran.died = EngineDied(
                    f"{self._lone_failures} requests in a row failed alone.",
                    why=str(error),
                    remedy="The engine has to be loaded again.",
                )
                return ran
        return ran

    def _try(self, works: list[Work], ran: Ran) -> EngineError | None:
        """Run works and commit them; on failure change nothing and return the error.

        A failure of any kind counts, not only the typed ones: one request must not end all others.
        """
        began = self._clock()
        try:
            rows = self._decoding.begin(works)
            self._executor.run(self._batch.build(works))
            drawn = self._decoding.finish(rows)
        except EngineError as error:
            return error
        except Exception as error:
            logger.exception("The executor raised an error without a type")
            return EngineError("A step failed.", why=f"{type(error).__name__}: {error}")
        self._scheduler.observe(works, self._clock() - began)
        self.steps += 1
        self._lone_failures = 0
        for work in works:
            if work.sequence.computed < work.sequence.prompt_length or work.tokens > 1 + len(work.drafts):
                self.prefilled += work.tokens
        for one in drawn:
            if one.failure is not None:
                self._scheduler.distrust(one.sequence)
            for token in one.tokens[:-1]:
                one.sequence.append(token)
        self._scheduler.commit(works)
        ran.drawn += drawn
        return None


def _less(work: Work) -> Work:
    """A smaller part of a work that fails alone: without its drafts, or half of its tokens."""
    if work.drafts:
        return Work(work.sequence, work.tokens - len(work.drafts), work.reserved, work.samples)
    return Work(work.sequence, work.tokens // 2, work.reserved, False)
