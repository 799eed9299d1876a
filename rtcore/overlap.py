"""Overlap: the next step is prepared and queued while the running one's tokens are still being chosen."""

from __future__ import annotations

from ops.errors import EngineError
from rtcore.scheduler.base import Work
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.sequence import Status, held
from rtcore.step_runner import Flight, Ran, StepRunner


class Overlap:
    """Keeps at most one step in flight, where the executor overlaps; elsewhere runs each to its end.

    To go ahead, sequences count as if the flight had ended: what it computes is computed, and where one goes on its
    newest token is expected, which the executor takes from where the flight puts it. Then the next step is
    scheduled and queued as ever. Only after that the flight's tokens are waited for; its sequences are set back and
    committed as if nothing had been ahead, so that caches, limits and failures see what they would without any
    overlap. A sequence that ended meanwhile was computed once too often: what the next step gives it is dropped,
    and its blocks are free at once, because whoever gets them writes after that step.

    What would need tokens on the host (grammars, bad words, the user's own code, drafts, scored prompts) does not
    go ahead, nor does what would preempt.
    """

    def __init__(self, runner: StepRunner, scheduler: LaneScheduler, enabled: bool) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._enabled = enabled
        self._flight: Flight | None = None
        self.ahead = 0

    @property
    def flying(self) -> bool:
        """Whether a step is in flight."""
        return self._flight is not None

    def go_ahead(self) -> bool:
        """Set the sequences of the flight, if there is one, ahead, so that the next step can be scheduled. If not,
        the flight has to land first."""
        flight = self._flight
        if flight is None:
            return False
        works = [work for work in flight.works if work.sequence.status is Status.RUNNING]
        if any(work.sequence.decoding.needs_tokens for work in works):
            return False
        growing = going_on = 0
        for work in works:
            sequence = work.sequence
            goes_on = work.samples and sequence.length + 1 < sequence.limit
            going_on += goes_on
            # Each that has one token to compute then: its newest, or what a chunk left of its prompt.
            if goes_on or (not work.samples and sequence.pending - work.tokens == 1):
                growing += sequence.length + goes_on > held(sequence).writable
        if not going_on or not self._scheduler.can_run_ahead(growing):
            return False
        flight.advance()
        return True

    def run(self, works: list[Work]) -> Ran:
        """Run works, or queue them and land the flight before them."""
        before = self._flight
        if before is None and not self._flies(works):
            return self._runner.run(works)
        launched = self._runner.launch(works)
        ran = Ran()
        self._flight = None
        if before is not None:
            error = self._runner.land(before, ran)
            if error is not None:
                # What runs after a step that failed read what that should have written.
                self._scheduler.rollback(works)
                return self._fail(before, error, ran)
            self.ahead += 1
        if not isinstance(launched, Flight):
            return self._runner.fail(works, launched, ran)
        self._flight = launched
        return ran

    def land(self) -> Ran | None:
        """End the flight; None where there is none."""
        flight, self._flight = self._flight, None
        if flight is None:
            return None
        ran = Ran()
        error = self._runner.land(flight, ran)
        return ran if error is None else self._fail(flight, error, ran)

    def drop(self) -> None:
        """Forget the flight: nobody waits for it any more."""
        self._flight = None

    def _flies(self, works: list[Work]) -> bool:
        """Whether works are worth queueing: something may follow before their tokens are known."""
        if not self._enabled or self._runner.isolates:
            return False
        return not any(work.drafts or work.sequence.decoding.needs_tokens for work in works)

    def _fail(self, flight: Flight, error: EngineError, ran: Ran) -> Ran:
        alive = [work for work in flight.works if work.sequence.status is Status.RUNNING]
        return self._runner.fail(alive, error, ran)
