"""CpuSampler: the sampling half of a step on the CPU."""

from __future__ import annotations

from ops.reference.sample import sample
from rtcore.executor.base import Float32
from rtcore.executor.sample_arrays import SampleInputs, SampleOutputs


class CpuSampler:
    """Runs the operator Sample over logits in host memory."""

    def run(self, logits: Float32, inputs: SampleInputs) -> SampleOutputs:
        """One token for each of the first len(inputs) rows."""
        return SampleOutputs(*sample(logits, *(array for _, array in inputs.named())))
