"""CudaSampler: tokens chosen on the GPU; only they and asked-for log-probabilities cross to the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.cuda import MOST_LOGPROBS, CudaDevice, SampleCall
from ops.sample_columns import Number, Setting
from rtcore.executor.cuda_memory import Layout, Staging
from rtcore.executor.sample_arrays import SampleInputs, SampleOutputs

#: What the inputs of a step without lists and masks may take; more memory is taken when a step asks for more.
_FIRST_ROOM = 1 << 20
_TOLD = ("logprobs", "ranks", "top_ids", "top_logprobs")


class CudaSampler:
    """Queues the choice of a token a row, and the copy of what was chosen to the host.

    Steps take turns with `turns` places in pinned memory, so that one may be written while another is read. The
    caller waits for a turn's last copies before the turn comes again. ids: the address of the chosen tokens int64
    [rows], which stay until the next choice.
    """

    def __init__(self, device: CudaDevice, rows: int, vocab_size: int, turns: int) -> None:
        """rows: the most of a step. Raises OutOfDeviceMemory."""
        self._device = device
        self._vocab_size = vocab_size
        self._layout = Layout.of(
            [
                ("ids", (rows,), np.int64),
                ("status", (rows,), np.int32),
                ("logprobs", (rows,), np.float32),
                ("ranks", (rows,), np.int32),
                ("top_ids", (rows, MOST_LOGPROBS), np.int32),
                ("top_logprobs", (rows, MOST_LOGPROBS), np.float32),
            ]
        )
        self._results = device.allocate(self._layout.size)
        self._host = [device.pinned(self._layout.size) for _ in range(turns)]
        self._inputs = [Staging(device, _FIRST_ROOM) for _ in range(turns)]
        self.ids = self._results + self._layout.places["ids"][0]
        device.reserve_sample(rows, vocab_size)

    def queue(self, logits: int, inputs: SampleInputs, turn: int) -> None:
        """Choose for the first rows of logits float32 [n, vocab_size] at an address of the GPU."""
        rows = len(inputs)
        if rows == 0:
            return
        inputs = _merged(inputs)
        pending = np.full(rows, -1, np.int32) if inputs.pending is None else inputs.pending
        arrays = [*inputs.named(), ("pending", pending)]
        layout = Layout.of([(name, array.shape, array.dtype) for name, array in arrays])
        staging = self._staging(turn, layout.size)
        views = staging.views(layout)
        for name, array in arrays:
            views[name][...] = array
        staging.send(layout)
        settings, numbers = inputs.settings, inputs.numbers
        drawn = (settings[:, Setting.TEMPERATURE] > 0) & (numbers[:, Number.FORCED] < 0)
        cut = drawn & ((numbers[:, Number.TOP_K] > 0) | (settings[:, Setting.TOP_P] < 1))
        self._device.sample(
            SampleCall(
                logits=logits,
                **{name: staging.address + layout.places[name][0] for name, _ in arrays},
                **{name: self._results + place for name, (place, _, _) in self._layout.places.items()},
                rows=rows,
                columns=self._vocab_size,
                masked=int((numbers[:, Number.MASK] >= 0).any()),
                listed=int(bool(len(inputs.token_ids) or len(inputs.bias_ids) or inputs.pending is not None)),
                drawn=int(drawn.any()),
                cut=int(cut.any()),
                told=int((numbers[:, Number.LOGPROBS] >= 0).any()),
            )
        )
        self._device.to_host(self._host[turn][: self._wanted(inputs)], self._results)

    def read(self, inputs: SampleInputs, turn: int) -> SampleOutputs:
        """What was chosen for `inputs`, once the turn's copies are done."""
        rows, numbers = len(inputs), inputs.numbers
        most = max(0, int(numbers[:, Number.LOGPROBS].max(initial=0)))
        ids, status = self._view("ids", turn)[:rows].copy(), self._view("status", turn)[:rows].copy()
        if not (numbers[:, Number.LOGPROBS] >= 0).any():
            none = np.empty((rows, 0))
            zeros = np.zeros(rows)
            return SampleOutputs(
                ids,
                status,
                zeros.astype(np.float32),
                zeros.astype(np.int32),
                none.astype(np.int32),
                none.astype(np.float32),
            )
        logprobs, ranks, top_ids, top_logprobs = (self._view(name, turn)[:rows] for name in _TOLD)
        tops = top_ids[:, :most].copy(), top_logprobs[:, :most].copy()
        return SampleOutputs(ids, status, logprobs.copy(), ranks.copy(), *tops)

    def _view(self, name: str, turn: int) -> NDArray[Any]:
        offset, shape, dtype = self._layout.places[name]
        size = int(np.prod(shape)) * dtype.itemsize
        return self._host[turn][offset : offset + size].view(dtype).reshape(shape)

    def _wanted(self, inputs: SampleInputs) -> int:
        """Bytes of the results, from their start, that anybody asks for."""
        asked = (inputs.numbers[:, Number.LOGPROBS] >= 0).any()
        offset, shape, dtype = self._layout.places["top_logprobs" if asked else "status"]
        return offset + (len(inputs) * dtype.itemsize * int(np.prod(shape[1:])))

    def _staging(self, turn: int, size: int) -> Staging:
        """Memory for a turn's inputs, larger if need be."""
        staging = self._inputs[turn]
        if size > staging.size:
            larger = Staging(self._device, 1 << (size - 1).bit_length())
            self._device.synchronize()
            staging.release()
            staging = self._inputs[turn] = larger
        return staging

    def release(self) -> None:
        """Give the memory back."""
        self._device.release(self._results)
        for host in self._host:
            self._device.release_pinned(host)
        for staging in self._inputs:
            staging.release()


def _merged(inputs: SampleInputs) -> SampleInputs:
    """The same with each token at most once in a row's biases, which the GPU adds at once."""
    if not len(inputs.bias_ids):
        return inputs
    lengths = np.diff(inputs.bias_start)
    row = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    keys, places = np.unique((row << 32) | inputs.bias_ids, return_inverse=True)
    if len(keys) == len(row):
        return inputs
    values = np.zeros(len(keys), np.float32)
    np.add.at(values, places, inputs.bias_values)
    start = np.searchsorted(keys >> 32, np.arange(len(lengths) + 1)).astype(np.int32)
    ids = (keys & 0xFFFFFFFF).astype(np.int32)
    return replace(inputs, bias_start=start, bias_ids=ids, bias_values=values)
