"""Between steps an executor leaves the cores to others."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from rtcore.executor.base import StepInputs
from rtcore.executor.registry import load_executor
from tests.rtcore.handmade import write_bundle

IDLE = 0.4


def test_threads_do_not_spin_between_steps(tmp_path: Path) -> None:
    """A single thread that went on spinning would take all of the time that passes."""
    config = EngineConfig(cache_bytes=1 << 20, threads=4)
    with closing(load_executor(Bundle.open(write_bundle(tmp_path / "model")), config)) as executor:
        step = StepInputs(
            input_ids=np.array([1, 2], np.int64),
            positions=np.array([0, 1], np.int64),
            query_start=np.array([0, 2], np.int32),
            seq_lens=np.array([2], np.int32),
            logit_rows=np.array([1], np.int64),
            block_tables=[np.array([[0]], np.int32)] * 2,
            slot_mapping=[np.array([0, 1], np.int32)] * 2,
            plan=np.array([0, 1, 2, 128, 2, 1], np.int32),
        )
        executor.run(step)
        time.sleep(IDLE)  # threads that never had work spin for a while once they are made
        for _ in range(3):
            executor.run(step)
        before = time.process_time()
        time.sleep(IDLE)
        assert time.process_time() - before < IDLE / 4
