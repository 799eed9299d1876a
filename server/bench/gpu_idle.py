"""IdleClock: how long a GPU waits for the host between the steps of an engine."""

from __future__ import annotations

from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from ops.errors import EngineError
from rtcore.executor.base import PendingSample, StepInputs
from rtcore.executor.cuda import CudaExecutor
from rtcore.executor.sample_arrays import SampleInputs


class IdleClock:
    """Records an event before each step's inputs are copied and one after its tokens are chosen.

    Events take their time when the GPU comes to them. Where a step was queued before the one ahead was done, its
    first event follows at once; where not, the GPU had nothing to do between the two.
    """

    def __init__(self, executor: CudaExecutor) -> None:
        self._executor = executor
        self._events: list[tuple[int, int]] = []
        self._begun = 0

    def __enter__(self) -> Self:
        """Watch the executor's steps; all of them choose tokens."""
        run, sample_later = self._executor.run, self._executor.sample_later
        device = self._executor.device

        def watched_run(inputs: StepInputs) -> None:
            self._begun = device.record()
            run(inputs)

        def watched_sample(inputs: SampleInputs) -> PendingSample:
            pending = sample_later(inputs)
            self._events.append((self._begun, device.record()))
            return pending

        patched: Any = self._executor
        patched.run, patched.sample_later = watched_run, watched_sample
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        patched: Any = self._executor
        del patched.run, patched.sample_later

    def share(self, last: int) -> float:
        """Of the time of the last `last` steps, what the GPU did nothing in."""
        device = self._executor.device
        steps = self._events[-last:]
        if len(steps) < 2:
            raise EngineError("Too few steps were watched to tell how long the GPU idles.")
        idle = sum(device.elapsed(before[1], after[0]) for before, after in pairwise(steps))
        whole = device.elapsed(steps[0][1], steps[-1][1])
        for pair in self._events:
            for event in pair:
                device.release_event(event)
        self._events.clear()
        return idle / whole
