"""DecodingStage: from a step's logits to the tokens of its sequences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ops.errors import EngineError, InvalidRequest, OrtolanError
from ops.sample_columns import NO_LOGPROBS, Number, RowStatus
from rtcore.decoding.grammar.masks import GrammarMasks, PendingMask
from rtcore.decoding.hooks import Hooks
from rtcore.decoding.rows import Row, RowBuilder, decoding, rows_of
from rtcore.executor.base import Chosen, Executor, PendingSample
from rtcore.executor.sample_arrays import SampleInputs, SampleOutputs
from rtcore.request import TokenLogprobs
from rtcore.scheduler.base import Work
from rtcore.sequence import Sequence

_POSITION = int(Number.POSITION)


@dataclass(slots=True)
class StepRows:
    """The rows of one step on their way: works in order, a row for each of their logits, and masks that are being
    computed.

    sequences: where all that every work does is to choose the next token, and nothing of the inputs but positions
    changes from one to the next. processed: whether processors of the user's own take part. numbers: those of the
    inputs as a memoryview, because after a step each function of numpy that is called once takes long.
    """

    works: list[Work]
    rows: list[Row]
    inputs: SampleInputs
    masks: list[PendingMask]
    sequences: list[Sequence]
    processed: bool
    numbers: memoryview


@dataclass(slots=True)
class Choice:
    """A step's tokens while they are being chosen, and what is known to have failed, by row."""

    pending: PendingSample | None
    failures: dict[int, OrtolanError] = field(default_factory=dict)


@dataclass(slots=True)
class Drawn:
    """What a step gave one sequence.

    tokens: in order, none where its prompt is not finished. Of several, all but the last are drafts that the draws
    confirmed; none but the last can end the sequence. logprobs: one for each token, or none. prompt_logprobs: of
    further tokens of the prompt. stop: what a stop rule of the user's own says, None where none ends it. failure:
    why nothing of this counts.
    """

    sequence: Sequence
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    stop: str | None = None
    failure: OrtolanError | None = None


class DecodingStage:
    """Turns works into rows before a step runs, and its logits into tokens afterwards.

    A draft is accepted while the token drawn in its place is the draft. Draws are keyed by seed and position, so
    this is rejection sampling (Leviathan et al. 2023, arXiv 2211.17192) for proposals that are certain of their
    token, and the sequence is the one that it would have been without drafts, draw for draw.
    """

    def __init__(self, executor: Executor, hooks: Hooks) -> None:
        self._executor = executor
        self._hooks = hooks
        self._builder = RowBuilder(executor.vocab_size)
        self._grammars = GrammarMasks()
        self._last: StepRows | None = None

    def begin(self, works: list[Work]) -> StepRows:
        """To be called before the step runs."""
        sequences = decoding(works)
        step = self._last
        if step is not None and sequences and sequences == step.sequences:
            step = replace(step, works=works)
            for row, sequence in enumerate(sequences):
                step.numbers[row, _POSITION] = sequence.length
        else:
            self._last = None
            step = self._last = self._new(works, sequences)
        if not (step.masks or step.processed):
            self._executor.foresee(step.inputs)
        return step

    def _new(self, works: list[Work], sequences: list[Sequence]) -> StepRows:
        masks = self._grammars.begin(works)
        rows = rows_of(works)
        repeatable = sequences if sequences and self._builder.repeatable(rows) else []
        processed = any(row.processed for row in rows)
        inputs = self._builder.build(rows)
        return StepRows(works, rows, inputs, masks, repeatable, processed, inputs.numbers.data)

    def choose(self, step: StepRows) -> Choice:
        """To be called after the step was given to the executor. Raises EngineError."""
        if not (step.rows or self._executor.overlaps):
            return Choice(None)
        ended = self._grammars.finish(step.masks, step.inputs)
        if step.processed:
            outputs, failures = self._hooks.sample(self._executor, step.rows, step.inputs)
            choice = Choice(Chosen(outputs), failures)
        else:
            choice = Choice(self._executor.sample_later(step.inputs))
        for one in ended:
            if one.job.state.error is not None:
                choice.failures[one.row + len(one.job.drafts)] = one.job.state.error
        return choice

    def finish(self, step: StepRows, choice: Choice) -> list[Drawn]:
        """What the step gave each work's sequence, in order; waits for it.

        Notes in each work how many drafts were accepted, and changes nothing else. Raises EngineError.
        """
        if choice.pending is None:
            return [Drawn(work.sequence) for work in step.works]
        outputs, failures = choice.pending.wait(), choice.failures
        if not step.rows:
            return [Drawn(work.sequence) for work in step.works]
        if step.sequences and not failures and not any(outputs.status.tolist()):
            drawn = _one_each(step.sequences, outputs)
        else:
            drawn = []
            place = 0
            for work in step.works:
                failure = failures.get(place + work.logits - 1) if failures and work.logits else None
                drawn.append(Drawn(work.sequence, failure=failure) if failure else self._read(work, outputs, place))
                place += work.logits
        self._hooks.stop(drawn)
        return drawn

    def close(self) -> None:
        """Let the thread that computes masks end. Safe to call twice."""
        self._grammars.close()

    def _read(self, work: Work, outputs: SampleOutputs, place: int) -> Drawn:
        sequence = work.sequence
        drawn = Drawn(sequence)
        statuses = outputs.status[place : place + work.logits]
        wrong = statuses.nonzero()[0]
        first_choice = place + work.scored
        if len(wrong) and (place + wrong[0] <= first_choice or not work.drafts):
            drawn.failure = _failure(int(statuses[wrong[0]]), bool(sequence.decoding.processors))
            return drawn
        drawn.prompt_logprobs = [_logprobs(outputs, row) for row in range(place, first_choice)]
        if not work.samples:
            return drawn
        length = sequence.length
        for count, row in enumerate(range(first_choice, place + work.logits)):
            if outputs.status[row]:
                # A row after drafts that do not hold; if they did, the next step meets the same logits first.
                break
            token = int(outputs.ids[row])
            drawn.tokens.append(token)
            if sequence.decoding.logprobs != NO_LOGPROBS:
                drawn.logprobs.append(_logprobs(outputs, row))
            confirmed = count < len(work.drafts) and work.drafts[count] == token
            if not confirmed or sequence.reason(token, length + count + 1) is not None:
                break
        work.accepted = len(drawn.tokens) - 1
        return drawn


def _one_each(sequences: list[Sequence], outputs: SampleOutputs) -> list[Drawn]:
    """What sequences drew that have one sound row each."""
    drawn = [Drawn(one, [token]) for one, token in zip(sequences, outputs.ids.tolist(), strict=True)]
    for row, one in enumerate(drawn):
        if one.sequence.decoding.logprobs != NO_LOGPROBS:
            one.logprobs.append(_logprobs(outputs, row))
    return drawn


def _logprobs(outputs: SampleOutputs, row: int) -> TokenLogprobs:
    ids = outputs.top_ids[row]
    count = int((ids >= 0).sum())
    return TokenLogprobs(
        float(outputs.logprobs[row]),
        int(outputs.ranks[row]),
        ids[:count].tolist(),
        outputs.top_logprobs[row, :count].tolist(),
    )


def _failure(status: int, processed: bool) -> OrtolanError:
    if status == RowStatus.NOTHING_ALLOWED:
        return InvalidRequest(
            "The request forbids every token that could come next.",
            why="Its bans, allowed ids and grammar together leave none.",
            remedy="Allow more tokens.",
        )
    why = "They hold NaN or infinity."
    if processed:
        return EngineError("The request's logits processors left no usable logits.", why=why)
    return EngineError("The model gave no usable logits for this request.", why=why)
