"""GreedySampler: the most likely token of each row, chosen on the GPU; only the tokens cross to the host."""

from __future__ import annotations

import numpy as np

from ops.cuda import CudaDevice
from ops.sample_columns import Number, RowStatus, Setting
from rtcore.executor.sample_arrays import SampleInputs, SampleOutputs


class GreedySampler:
    """Serves steps in which nobody asks for more than the most likely token."""

    def __init__(self, device: CudaDevice, rows: int, vocab_size: int) -> None:
        """rows: the most of a step."""
        self._device = device
        self._vocab_size = vocab_size
        self._ids = device.allocate(16 * rows)
        self._host = device.pinned(16 * rows)

    def run(self, logits: int, rows: int) -> SampleOutputs:
        """The tokens of the first rows of logits float32 [n, vocab_size] at an address of the GPU."""
        # Addresses that kernels take are multiples of 16.
        tops = 8 * (rows + rows % 2)
        self._device.argmax(logits, self._ids, self._ids + tops, rows, self._vocab_size)
        self._device.to_host(self._host[: tops + 4 * rows], self._ids)
        self._device.synchronize()
        finite = np.isfinite(self._host[tops : tops + 4 * rows].view(np.float32))
        return SampleOutputs(
            ids=self._host[: 8 * rows].view(np.int64).copy(),
            status=np.where(finite, RowStatus.SOUND, RowStatus.NOT_FINITE).astype(np.int32),
            logprobs=np.zeros(rows, np.float32),
            ranks=np.zeros(rows, np.int32),
            top_ids=np.empty((rows, 0), np.int32),
            top_logprobs=np.empty((rows, 0), np.float32),
        )

    def release(self) -> None:
        """Give the memory back."""
        self._device.release(self._ids)
        self._device.release_pinned(self._host)


def greedy(inputs: SampleInputs) -> bool:
    """Whether every row takes its most likely token as the logits are, and nothing else is asked for."""
    return bool(
        not len(inputs.token_ids)
        and not len(inputs.bias_ids)
        and (inputs.settings[:, Setting.TEMPERATURE] <= 0).all()
        and (inputs.numbers[:, [Number.LOGPROBS, Number.FORCED, Number.MASK]] < 0).all()
    )
