"""StepRunner: a step's works, all at once, and after a failure in ever smaller parts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ops.errors import EngineDied, EngineError
from rtcore.decoding.stage import Choice, DecodingStage, Drawn, StepRows
from rtcore.executor.base import Executor
from rtcore.scheduler.base import Work
from rtcore.scheduler.batch import BatchBuilder
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.scheduler.outcome import Outcome
from rtcore.sequence import Sequence, Status

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


@dataclass(slots=True)
class Flight:
    """A step that was given to the executor and whose tokens are not known yet.

    began: seconds of the engine's clock. advanced: whether its sequences count as if it had ended.
    """

    works: list[Work]
    rows: StepRows
    choice: Choice
    began: float
    advanced: bool = False

    def advance(self) -> None:
        """Have the sequences count what is being computed, and expect a token where one will go on."""
        self.advanced = True
        row = 0
        for work in self.works:
            sequence = work.sequence
            if sequence.status is Status.RUNNING:
                sequence.computed += work.tokens
                if work.samples and sequence.length + 1 < sequence.limit:
                    sequence.expect(row)
            row += work.logits

    def retract(self) -> None:
        """Undo `advance`."""
        if self.advanced:
            self.advanced = False
            for work in self.works:
                if work.sequence.status is Status.RUNNING:
                    work.sequence.unexpect()
                    work.sequence.computed -= work.tokens


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
        self._landed = 0.0
        self._lone_failures = 0
        self.steps = self.aborted = self.prefilled = 0

    def run(self, works: list[Work]) -> Ran:
        """Run the works of a step that was scheduled and prepared."""
        return self._run_parts(works) if self._isolate else self._run_whole(works)

    @property
    def isolates(self) -> bool:
        """Whether the next works run in parts, because those before failed together."""
        return self._isolate

    def _run_whole(self, works: list[Work]) -> Ran:
        """Run all work at once; on failure give everything back and have the next step isolate the cause."""
        ran = Ran()
        error = self._try(works, ran)
        return ran if error is None else self.fail(works, error, ran)

    def fail(self, works: list[Work], error: EngineError, ran: Ran) -> Ran:
        """Give back what works had reserved that failed together, and isolate the cause in the next step."""
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
        """Run works and commit them; on failure change nothing and return the error."""
        flight = self.launch(works)
        return self.land(flight, ran) if isinstance(flight, Flight) else flight

    def launch(self, works: list[Work]) -> Flight | EngineError:
        """Give works to the executor; on failure nothing changes.

        A failure of any kind counts, not only the typed ones: one request must not end all others.
        """
        began = self._clock()
        try:
            inputs = self._batch.build(works)
            # What it tells the executor of the step's rows holds for the next run, which must be of these inputs.
            rows = self._decoding.begin(works)
            self._executor.run(inputs)
            return Flight(works, rows, self._decoding.choose(rows), began)
        except Exception as error:
            return _typed(error)

    def land(self, flight: Flight, ran: Ran) -> EngineError | None:
        """Wait for what a flight chose and commit its works, but for those of sequences that have ended since; on
        failure return the error, with the sequences as before the flight."""
        drawn: list[Drawn] = []
        error: EngineError | None = None
        try:
            drawn = self._decoding.finish(flight.rows, flight.choice)
        except Exception as raised:
            error = _typed(raised)
        flight.retract()
        now = self._clock()
        seconds = now - max(flight.began, self._landed)
        self._landed = now
        if error is not None:
            return error
        works = flight.works
        if any(work.sequence.status is not Status.RUNNING for work in works):
            drawn = [one for one in drawn if one.sequence.status is Status.RUNNING]
            works = [work for work in works if work.sequence.status is Status.RUNNING]
        else:
            self._scheduler.observe(works, seconds)
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


def _typed(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    logger.error("The executor raised an error without a type", exc_info=error)
    return EngineError("A step failed.", why=f"{type(error).__name__}: {error}")


def _less(work: Work) -> Work:
    """A smaller part of a work that fails alone: without its drafts, or half of its tokens."""
    if work.drafts:
        return Work(work.sequence, work.tokens - len(work.drafts), work.reserved, work.samples)
    return Work(work.sequence, work.tokens // 2, work.reserved, False)
