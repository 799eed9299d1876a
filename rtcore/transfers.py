"""Transfers: cache blocks copied, saved to host memory and loaded back before a step runs."""

from __future__ import annotations

import time

import numpy as np

from ops.errors import EngineError
from rtcore.executor.base import Executor
from rtcore.scheduler.base import ScheduledStep
from rtcore.scheduler.swapping import Swapping


class Transfers:
    """Does what a scheduled step asks for: saves first, while the blocks still hold what is to be saved, then
    copies, then loads."""

    def __init__(self, executor: Executor, swapping: Swapping) -> None:
        self._executor = executor
        self._swapping = swapping
        self.saves = 0

    def prepare(self, step: ScheduledStep) -> EngineError | None:
        """The error if anything failed; then nothing of the step can be relied on."""
        if not (step.saves or step.copies or step.loads):
            return None
        try:
            self._save(step)
            for copy in step.copies:
                self._executor.copy_blocks(
                    copy.group, np.array([copy.source], np.int32), np.array([copy.destination], np.int32)
                )
            self._load(step)
        except EngineError as error:
            return error
        except Exception as error:
            return EngineError("Cache blocks could not be moved.", why=f"{type(error).__name__}: {error}")
        return None

    def _save(self, step: ScheduledStep) -> None:
        for sequence in step.saves:
            saved = sequence.saved
            if saved is not None:
                began = time.perf_counter()
                saved.payload = [
                    self._executor.save_blocks(group, blocks) for group, blocks in enumerate(saved.blocks)
                ]
                self._swapping.observe(saved.size, time.perf_counter() - began)
                self.saves += 1

    def _load(self, step: ScheduledStep) -> None:
        for sequence in step.loads:
            saved = sequence.saved
            if saved is not None:
                began = time.perf_counter()
                for group, payload in enumerate(saved.payload):
                    self._executor.load_blocks(group, saved.blocks[group], payload)
                self._swapping.observe(saved.size, time.perf_counter() - began)
