"""StepPlaces: where a step's small inputs lie on the GPU, and how they get there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ops.cuda import CudaDevice
from rtcore.executor.base import Int32, StepInputs
from rtcore.executor.cuda_memory import Array, Layout, Staging

_SOURCE = "token_source"
_SHARED = ("input_ids", "positions", "logit_rows", "query_start", "seq_lens")


class StepPlaces:
    """One piece of the GPU's memory, and one of pinned memory for each of the turns that steps take.

    The caller waits for a turn's last copy before the turn comes again.
    """

    def __init__(self, device: CudaDevice, groups: int, largest: tuple[int, int, int, int], turns: int) -> None:
        """groups: of the cache. largest: tokens, rows, rows of logits and columns of tables of a step at most."""
        self._device = device
        self._groups = range(groups)
        tokens, rows, logit_rows, width = largest
        size = self.layout(tokens, rows, logit_rows, [width] * groups).size
        self._staging = [Staging(device, size)]
        self._staging += [Staging(device, size, self._staging[0].address) for _ in range(turns - 1)]

    def layout(self, tokens: int, rows: int, logit_rows: int, widths: list[int]) -> Layout:
        """The arrays of a step; widths: columns of each group's block tables."""
        shapes: list[tuple[str, tuple[int, ...], Any]] = [
            ("input_ids", (tokens,), np.int64),
            ("positions", (tokens,), np.int64),
            ("logit_rows", (logit_rows,), np.int64),
            (_SOURCE, (tokens,), np.int32),
            ("query_start", (rows + 1,), np.int32),
            ("seq_lens", (rows,), np.int32),
        ]
        for group, width in enumerate(widths):
            shapes += [
                (f"slot_mapping.{group}", (tokens,), np.int32),
                (f"block_tables.{group}", (rows, width), np.int32),
            ]
        return Layout.of(shapes)

    def of(self, inputs: StepInputs) -> Layout:
        """The layout of a step without padding."""
        widths = [table.shape[1] for table in inputs.block_tables]
        return self.layout(len(inputs.input_ids), len(inputs.seq_lens), len(inputs.logit_rows), widths)

    def addresses(self, layout: Layout) -> dict[str, tuple[int, tuple[int, ...], str]]:
        """Address, shape and type of each array on the GPU."""
        base = self._staging[0].address
        return {name: (base + offset, shape, dtype.name) for name, (offset, shape, dtype) in layout.places.items()}

    def views(self, layout: Layout, turn: int) -> dict[str, Array]:
        """A turn's arrays in pinned memory."""
        return self._staging[turn].views(layout)

    def zeroed(self, layout: Layout, turn: int) -> dict[str, Array]:
        """A turn's arrays for a step that writes nothing."""
        views = self.views(layout, turn)
        for array in views.values():
            array[...] = 0
        views[_SOURCE][...] = -1
        for group in self._groups:
            views[f"slot_mapping.{group}"][...] = -1
        return views

    def fill(self, views: dict[str, Array], inputs: StepInputs) -> None:
        """Write a step into arrays of its own shapes."""
        for name in _SHARED:
            views[name][...] = getattr(inputs, name)
        for group, (table, slots) in enumerate(zip(inputs.block_tables, inputs.slot_mapping, strict=True)):
            views[f"block_tables.{group}"][...] = table
            views[f"slot_mapping.{group}"][...] = slots
        if inputs.token_source is not None:
            views[_SOURCE][...] = inputs.token_source

    def pad(self, views: dict[str, Array], inputs: StepInputs) -> None:
        """Write a step of decode rows into arrays for more of them: the others read and write nothing."""
        rows, sampled = len(inputs.seq_lens), len(inputs.logit_rows)
        for name in ("input_ids", "positions", "seq_lens"):
            views[name][:rows] = getattr(inputs, name)
            views[name][rows:] = 0
        views["logit_rows"][:sampled] = inputs.logit_rows
        views["logit_rows"][sampled:] = 0
        views["query_start"][: rows + 1] = inputs.query_start
        views["query_start"][rows + 1 :] = rows
        for group, (table, slots) in enumerate(zip(inputs.block_tables, inputs.slot_mapping, strict=True)):
            views[f"block_tables.{group}"][:rows, : table.shape[1]] = table
            views[f"slot_mapping.{group}"][:rows] = slots
            views[f"slot_mapping.{group}"][rows:] = -1
        if inputs.token_source is not None:
            views[_SOURCE][:rows] = inputs.token_source

    def send(self, layout: Layout, turn: int, source: Int32 | None = None, ids: int = 0) -> None:
        """Queue the copy of a turn's arrays to the GPU, then the tokens that `source` names by their row of `ids`
        int64, an address."""
        self._staging[turn].send(layout)
        if source is not None:
            places = self.addresses(layout)
            self._device.feed(places["input_ids"][0], places[_SOURCE][0], ids, len(source))

    def release(self) -> None:
        """Give the memory back."""
        for staging in reversed(self._staging):
            staging.release()
