"""The weights of experts as checkpoints keep them: a tensor for each expert, or one for all experts of a layer.

transformers has gate and up of all experts of a layer in one parameter, one expert after the other. Checkpoints of
most families keep each expert's matrices apart, and GGUF files keep gate, up and down of all experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from export.sources import Concat, Named, RowSlice
from export.tensors import RowSource, mismatch


class _Spelling(NamedTuple):
    """How a checkpoint calls a layer's mixture and the matrices of an expert."""

    mixture: str
    gate: str
    up: str
    down: str


#: The mixture's name in transformers, and the spellings of checkpoints.
_MIXTURE = "mlp"
_SPELLINGS = (
    _Spelling("mlp", "gate_proj", "up_proj", "down_proj"),
    _Spelling("block_sparse_moe", "w1", "w3", "w2"),
)
_ROUTER = ".mlp.gate.weight"


def of_experts(
    name: str, shapes: Mapping[str, tuple[int, ...]], present: set[str], tensor: Callable[[str], RowSource]
) -> RowSource | None:
    """The parameter `name` of a layer of experts, from tensors of other names; None where the checkpoint has it by
    that name, or has nothing of it, or it is no such parameter.

    shapes: of the parameters as matrices; present: the names of the checkpoint's tensors. Raises CheckpointError
    when some experts are missing or of other shapes.
    """
    if name in present:
        return None
    if name.endswith(_ROUTER):
        former = name.replace(_ROUTER, ".block_sparse_moe.gate.weight")
        return tensor(former) if former in present else None
    layer, _, part = name.rpartition(f".{_MIXTURE}.experts.")
    if not layer or part not in ("gate_up_proj", "down_proj"):
        return None
    inner = shapes[f"{layer}.{_MIXTURE}.experts.down_proj"][1]
    hidden = shapes[f"{layer}.{_MIXTURE}.experts.gate_up_proj"][1]
    count = shapes[f"{layer}.{_MIXTURE}.experts.down_proj"][0] // hidden
    for spelling in _SPELLINGS:
        base = f"{layer}.{spelling.mixture}.experts"
        parts, rows = (
            ((spelling.gate, spelling.up), inner) if part == "gate_up_proj" else ((spelling.down,), hidden)
        )
        if f"{base}.0.{parts[0]}.weight" in present:
            width = shapes[name][1]
            return Named(_apart(base, parts, count, (rows, width), tensor), name)
        if f"{base}.{parts[0]}.weight" in present:
            return Named(_together(base, parts, count, rows, tensor), name)
    return None


def _apart(
    base: str, parts: tuple[str, ...], count: int, shape: tuple[int, int], tensor: Callable[[str], RowSource]
) -> RowSource:
    """One matrix for each expert and part."""
    sources = [tensor(f"{base}.{expert}.{part}.weight") for expert in range(count) for part in parts]
    for index, source in enumerate(sources):
        if tuple(source.shape) != shape:
            expert, part = divmod(index, len(parts))
            raise mismatch(f"{base}.{expert}.{parts[part]}.weight", source.shape, shape)
    return Concat(sources)


def _together(
    base: str, parts: tuple[str, ...], count: int, rows: int, tensor: Callable[[str], RowSource]
) -> RowSource:
    """One matrix for each part, with the rows of all experts."""
    sources = [tensor(f"{base}.{part}.weight") for part in parts]
    for part, source in zip(parts, sources, strict=True):
        if source.shape[0] != count * rows:
            raise mismatch(f"{base}.{part}.weight", source.shape, (count * rows, *source.shape[1:]))
    if len(sources) == 1:
        return sources[0]
    return Concat(
        [RowSlice(source, expert * rows, (expert + 1) * rows) for expert in range(count) for source in sources]
    )
