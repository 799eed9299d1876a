"""GrammarMasks: the grammars of a step's sequences, between their tokens and the sampler's masks."""

from __future__ import annotations

from dataclasses import dataclass

from ops.sample_columns import Number
from rtcore.decoding.grammar.mask_worker import MaskJob, MaskWorker
from rtcore.executor.sample_arrays import SampleInputs
from rtcore.scheduler.base import Work


@dataclass(slots=True)
class PendingMask:
    """A job, and the first of the rows of its work that are drawn."""

    job: MaskJob
    row: int


class GrammarMasks:
    """Has the masks computed while the model runs. Used by one thread, one step at a time."""

    def __init__(self) -> None:
        self._worker = MaskWorker()

    def begin(self, works: list[Work]) -> list[PendingMask]:
        """Start on the masks of the works whose sequences have a grammar."""
        pending: list[PendingMask] = []
        row = 0
        for work in works:
            if work.samples and work.sequence.decoding.grammar is not None:
                if not pending:
                    self._worker.settle()
                pending.append(PendingMask(_job(work), row + work.scored))
            row += work.logits
        if pending:
            self._worker.begin([one.job for one in pending])
        return pending

    def finish(self, pending: list[PendingMask], inputs: SampleInputs) -> list[PendingMask]:
        """Narrow the masks of a step to what the grammars allow; those whose sequence cannot go on."""
        if not pending:
            return []
        self._worker.finish()
        for one in pending:
            first = int(inputs.numbers[one.row, Number.MASK])
            inputs.masks[first : first + len(one.job.rows)] &= one.job.rows
        return [one for one in pending if one.job.state.error is not None]

    def close(self) -> None:
        """Let the thread end. Safe to call twice."""
        self._worker.close()


def _job(work: Work) -> MaskJob:
    sequence = work.sequence
    decoding, params = sequence.decoding, sequence.request.params
    state = decoding.grammar
    if state is None:
        raise ValueError("The sequence has no grammar.")
    rows = len(work.drafts) + 1
    return MaskJob(
        state,
        tokens=sequence.tokens[sequence.prompt_length + state.accepted : sequence.length].tolist(),
        drafts=work.drafts,
        own_stops=frozenset(params.stop_token_ids),
        held=rows if params.ignore_eos else min(rows, max(0, decoding.min_length - sequence.length)),
    )
