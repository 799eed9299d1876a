"""LateExecutor: a fake executor that runs steps as late as a GPU may, when somebody waits for what they give."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ops.errors import EngineError
from rtcore.executor.base import Float32, Int32, Int64, Payload, StepInputs
from rtcore.executor.sample_arrays import SampleInputs, SampleOutputs
from tests.rtcore.fakes import FakeExecutor

TURNS = 2


@dataclass(eq=False)
class Later:
    """What a step chooses, once it has run."""

    executor: LateExecutor
    outputs: SampleOutputs | None = None
    error: Exception | None = None

    def wait(self) -> SampleOutputs:
        self.executor.flush(self)
        if self.error is not None:
            raise self.error
        assert self.outputs is not None
        return self.outputs


class LateExecutor(FakeExecutor):
    """Queues copies of what it is given, does it in order, and gives the tokens that a step names by their row.

    A step that fails shows it to whoever waits for its tokens, and spoils the slots that it was to write; what was
    queued behind it runs all the same.
    """

    overlaps = True

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self._queue: list[tuple[Callable[[], None], Later | None]] = []
        self._chosen = np.zeros(0, np.int64)
        self._failed: Exception | None = None
        self.most_queued = 0

    def run(self, inputs: StepInputs) -> None:
        waiting = [later for _, later in self._queue if later is not None]
        if len(waiting) == TURNS:
            # Of a step that nobody waits for any more; its place is needed.
            self.flush(waiting[0])
        kept = copy.deepcopy(inputs)
        self._queue.append((lambda: self._run(kept), None))

    def _run(self, inputs: StepInputs) -> None:
        source = inputs.token_source
        if source is not None:
            named = source >= 0
            inputs.input_ids[named] = self._chosen[source[named]]
        self._failed = None
        try:
            super().run(inputs)
        except EngineError as error:
            self._failed = error
            self._rows = np.zeros((len(inputs.logit_rows), self.vocab_size), np.float32)

    def sample_later(self, inputs: SampleInputs) -> Later:
        later, kept = Later(self), copy.deepcopy(inputs)
        self._queue.append((lambda: self._sample(kept, later), later))
        self.most_queued = max(self.most_queued, sum(one is not None for _, one in self._queue))
        return later

    def sample(self, inputs: SampleInputs) -> SampleOutputs:
        return self.sample_later(inputs).wait()

    def _sample(self, inputs: SampleInputs, later: Later) -> None:
        outputs = super().sample(self._counted(inputs))
        self._chosen, later.outputs, later.error = outputs.ids, outputs, self._failed

    def _counted(self, inputs: SampleInputs) -> SampleInputs:
        """Inputs whose lists count what was chosen since they were made."""
        if inputs.pending is None:
            return inputs
        ids, counts, start = [], [], [0]
        for row, source in enumerate(inputs.pending.tolist()):
            part = slice(inputs.token_start[row], inputs.token_start[row + 1])
            known = dict(zip(inputs.token_ids[part].tolist(), inputs.token_counts[part].tolist(), strict=True))
            if source >= 0:
                token = int(self._chosen[source])
                known[token] = known.get(token, 0) + 1
            ids += known
            counts += known.values()
            start.append(len(ids))
        arrays = (np.array(start, np.int32), np.array(ids, np.int32), np.array(counts, np.int32))
        return replace(inputs, token_start=arrays[0], token_ids=arrays[1], token_counts=arrays[2])

    def flush(self, until: Later | None = None) -> None:
        """Do what was queued, up to what somebody waits for."""
        while self._queue and not (until is not None and (until.outputs is not None or until.error is not None)):
            self._queue.pop(0)[0]()

    def logits(self) -> Float32:
        self.flush()
        return super().logits()

    def put_logits(self, rows: Int64, logits: Float32) -> None:
        self.flush()
        super().put_logits(rows, logits)

    def copy_blocks(self, group: int, source: Int32, destination: Int32) -> None:
        pair = source.copy(), destination.copy()
        self._queue.append((lambda: FakeExecutor.copy_blocks(self, group, *pair), None))

    def save_blocks(self, group: int, blocks: Int32) -> Payload:
        self.flush()
        return super().save_blocks(group, blocks)

    def load_blocks(self, group: int, blocks: Int32, payload: Payload) -> None:
        self.flush()
        super().load_blocks(group, blocks, payload)

    def release_blocks(self, group: int, blocks: Int32) -> None:
        self.flush()
        super().release_blocks(group, blocks)
