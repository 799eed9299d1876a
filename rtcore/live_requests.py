"""LiveRequests: the requests that an engine has taken and not ended, and what is to be told of them next."""

from __future__ import annotations

from ops.errors import EngineError, InvalidRequest, OrtolanError
from rtcore.decoding.stage import Drawn
from rtcore.failure import failure_of
from rtcore.intake import Intake
from rtcore.request import EngineRequest, FinishReason, TokenDelta
from rtcore.scheduler.deadlines import too_late
from rtcore.scheduler.lane_scheduler import LaneScheduler
from rtcore.sequence import Sequence
from rtcore.tally import Tally


class LiveRequests:
    """Takes requests, ends them, and collects what a step says of them in `deltas`, until `take_deltas`."""

    def __init__(self, intake: Intake, scheduler: LaneScheduler, tally: Tally) -> None:
        self._intake = intake
        self._scheduler = scheduler
        self._tally = tally
        self._sequences: dict[str, Sequence] = {}
        self._cancelled: list[str] = []
        self.deltas: list[TokenDelta] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def submit(self, request: EngineRequest) -> bool:
        """Take a request; see Engine.submit."""
        if request.id in self._sequences:
            raise InvalidRequest(f"A request with id {request.id!r} is running.", param="id")
        sequence, waits = self._intake.take(request)
        self._sequences[request.id] = sequence
        return waits

    def cancel(self, request_id: str) -> None:
        """Have `settle` end a request; nothing happens when it is not live."""
        if request_id in self._sequences and request_id not in self._cancelled:
            self._cancelled.append(request_id)

    def settle(self) -> list[str]:
        """End what was cancelled, what is too late and those whose grammar is none, and queue those whose grammar
        is compiled; returns the ids of the last."""
        for request_id in self._cancelled:
            self.finish(self._sequences[request_id], "cancelled")
        self._cancelled.clear()
        accepted = []
        for sequence, error in self._intake.settle():
            if error is None:
                accepted.append(sequence.request.id)
            else:
                self.finish(sequence, "error", error)
        for sequence in self._scheduler.expired():
            self.finish(sequence, "error", too_late(sequence))
        return accepted

    def give_out(self, drawn: Drawn) -> None:
        """Tell what a step gave a sequence, and end the sequence if its newest token is the last."""
        sequence = drawn.sequence
        if drawn.failure is not None:
            self.finish(sequence, "error", drawn.failure)
            return
        sequence.decoding.prompt_scored += len(drawn.prompt_logprobs)
        reason: FinishReason | None = None
        stop: int | str | None = None
        if drawn.tokens:
            reason = sequence.append(drawn.tokens[-1])
            if reason is not None and sequence.prompt_only:
                drawn.tokens, drawn.logprobs, reason = [], [], "length"
            elif reason == "stop":
                stop = sequence.stop_reason(drawn.tokens[-1])
            elif drawn.stop is not None:
                reason, stop = "stop", drawn.stop
            self._tally.generated += len(drawn.tokens)
        elif not drawn.prompt_logprobs:
            return
        if reason is not None:
            self._forget(sequence, reason)
        self.deltas.append(
            TokenDelta(
                sequence.request.id,
                drawn.tokens,
                reason,
                stop,
                logprobs=drawn.logprobs,
                prompt_logprobs=drawn.prompt_logprobs,
            )
        )

    def finish(self, sequence: Sequence, reason: FinishReason, error: OrtolanError | None = None) -> None:
        """End a sequence without a new token."""
        self._forget(sequence, reason)
        self.deltas.append(
            TokenDelta(sequence.request.id, [], reason, failure=failure_of(error) if error else None)
        )

    def finish_all(self, error: OrtolanError) -> None:
        """End every sequence with an error."""
        for sequence in list(self._sequences.values()):
            self.finish(sequence, "error", error)

    def _forget(self, sequence: Sequence, reason: FinishReason) -> None:
        self._intake.remove(sequence)
        del self._sequences[sequence.request.id]
        self._tally.finished(reason)

    def take_deltas(self) -> list[TokenDelta]:
        """What was collected, which is then forgotten here."""
        deltas, self.deltas = self.deltas, []
        return deltas

    def check_invariants(self) -> None:
        """Raise EngineError unless the scheduler and the grammars hold exactly these requests."""
        held = [*self._scheduler.sequences(), *self._intake.grammars]
        if {id(sequence) for sequence in held} != {id(sequence) for sequence in self._sequences.values()}:
            raise EngineError("The live requests are not those that the scheduler holds.")

    def drop(self) -> None:
        """Forget all requests, without a word."""
        self._sequences.clear()
        self._cancelled.clear()
        self.deltas.clear()
