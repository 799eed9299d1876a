"""CpuSampler: the sampling half of a step on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.errors import BundleDamaged, EngineDied, EngineError
from ops.sample_columns import Number
from rtcore.executor.base import Float32
from rtcore.executor.sample_arrays import INPUTS, OUTPUTS, SampleInputs, SampleOutputs


class SampleBinding:
    """What the operator Sample reads and writes, bound where it lies; what is bound already costs nothing."""

    def __init__(self, binding: Any) -> None:
        """binding: an onnxruntime.IOBinding of a session whose graph has the sample graph's inputs and outputs."""
        self._binding = binding
        self._inputs: SampleInputs | None = None
        self._bound: dict[str, NDArray[Any]] = {}
        self._outputs: SampleOutputs | None = None

    def bind(self, inputs: SampleInputs) -> SampleOutputs:
        """Where the tokens for each of len(inputs) rows will be written, which the next call may overwrite."""
        outputs = self._outputs
        if inputs is self._inputs and outputs is not None:
            return outputs
        for name, array in inputs.named():
            if self._bound.get(name) is not array:
                self._binding.bind_cpu_input(name, array)
                self._bound[name] = array
        rows, most = len(inputs), max(0, int(inputs.numbers[:, Number.LOGPROBS].max(initial=0)))
        if outputs is None or outputs.top_ids.shape != (rows, most):
            outputs = self._new_outputs(rows, most)
        self._inputs = inputs
        return outputs

    def close(self) -> None:
        """Let go of the binding and of all arrays."""
        self._binding = self._inputs = self._outputs = None
        self._bound.clear()

    def _new_outputs(self, rows: int, most: int) -> SampleOutputs:
        outputs = self._outputs = SampleOutputs(
            np.empty(rows, np.int64),
            np.empty(rows, np.int32),
            np.empty(rows, np.float32),
            np.empty(rows, np.int32),
            np.empty((rows, most), np.int32),
            np.empty((rows, most), np.float32),
        )
        for name in OUTPUTS:
            array = getattr(outputs, name)
            self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return outputs


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
        self._bound = SampleBinding(self._binding)
        self._logits: Float32 | None = None

    def run(self, logits: Float32, inputs: SampleInputs) -> SampleOutputs:
        """One token for each of the first len(inputs) rows of logits float32 [n, V]. Raises EngineError."""
        if self._session is None:
            raise EngineDied("The executor was closed.")
        if self._logits is not logits:
            self._binding.bind_cpu_input("logits", logits)
            self._logits = logits
        outputs = self._bound.bind(inputs)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            # ONNX Runtime raises a class of its own for each status, without a common root but Exception.
            raise EngineError("Sampling failed in ONNX Runtime.", why=str(error)) from error
        return outputs

    def close(self) -> None:
        """Give the session back. Safe to call twice."""
        self._session = None
        self._binding = None
        self._bound.close()
