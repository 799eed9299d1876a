"""CpuSampler: the sampling half of a step on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ops.errors import BundleDamaged, EngineDied, EngineError
from ops.sample_columns import Number
from rtcore.executor.base import Float32
from rtcore.executor.sample_arrays import INPUTS, OUTPUTS, SampleInputs, SampleOutputs


class CpuSampler:
    """A session of the sample graph; it reads logits where the step wrote them."""

    def __init__(self, session: Any, name: str) -> None:
        """session: an onnxruntime.InferenceSession. Raises BundleDamaged where its graph, `name`, is another."""
        inputs = {value.name for value in session.get_inputs()}
        outputs = {value.name for value in session.get_outputs()}
        wrong = (inputs ^ {"logits", *INPUTS}) | (outputs ^ set(OUTPUTS))
        if wrong:
            raise BundleDamaged(
                f"The graph {name} has other inputs or outputs than this version runs: "
                f"{', '.join(sorted(wrong)[:4])}.",
                remedy="Export the model anew.",
                param=name,
            )
        self._session = session
        self._binding = session.io_binding()

    def run(self, logits: Float32, inputs: SampleInputs) -> SampleOutputs:
        """One token for each of the first len(inputs) rows of logits float32 [n, V]. Raises EngineError."""
        if self._session is None:
            raise EngineDied("The executor was closed.")
        rows = len(inputs)
        most = max(0, int(inputs.numbers[:, Number.LOGPROBS].max(initial=0)))
        outputs = SampleOutputs(
            np.empty(rows, np.int64),
            np.empty(rows, np.int32),
            np.empty(rows, np.float32),
            np.empty(rows, np.int32),
            np.empty((rows, most), np.int32),
            np.empty((rows, most), np.float32),
        )
        binding = self._binding
        binding.bind_cpu_input("logits", logits)
        for name, array in inputs.named():
            binding.bind_cpu_input(name, array)
        for name in OUTPUTS:
            array = getattr(outputs, name)
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            # ONNX Runtime raises a class of its own for each status, without a common root but Exception.
            raise EngineError("Sampling failed in ONNX Runtime.", why=str(error)) from error
        return outputs

    def close(self) -> None:
        """Give the session back. Safe to call twice."""
        self._session = None
        self._binding = None
