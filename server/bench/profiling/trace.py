"""The profile that ONNX Runtime writes of a session, read back: which node of which run took how long.

The file holds trace events (https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html): one
`model_run` of category Session for each run, and one `..._kernel_time` of category Node for each node of it.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

import msgspec

from ops.errors import ResourceError

_MICROSECOND = 1e-6
_KERNEL = "_kernel_time"
_RUN = "model_run"

Shape = tuple[int, ...]


class NodeTime(msgspec.Struct, frozen=True):
    """One node of one run. inputs and outputs: shapes in order, absent and prepacked inputs left out.
    bytes: activations, parameters and outputs, as ONNX Runtime counts them."""

    operator: str
    seconds: float
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    bytes: int


class RunTime(msgspec.Struct, frozen=True):
    """One run of the session: its time, and its nodes in order."""

    seconds: float
    nodes: list[NodeTime]


class _Event(msgspec.Struct):
    cat: str
    name: str
    ts: int
    dur: int
    args: dict[str, Any] = {}


def read_runs(path: Path) -> list[RunTime]:
    """The runs of the session in order. Raises ResourceError where the file is no profile."""
    try:
        events = msgspec.json.decode(path.read_bytes(), type=list[_Event])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ResourceError(
            f"The profile {path} cannot be read.",
            why=str(error),
            remedy="See that the disk is not full, and profile fewer steps: a profile holds a million events.",
        ) from error
    events.sort(key=lambda event: event.ts)
    begun = [event for event in events if event.name == _RUN]
    starts = [event.ts for event in begun]
    runs = [RunTime(event.dur * _MICROSECOND, []) for event in begun]
    for event in events:
        if event.cat == "Node" and event.name.endswith(_KERNEL) and starts and event.ts >= starts[0]:
            runs[bisect_right(starts, event.ts) - 1].nodes.append(_node(event))
    return runs


def _node(event: _Event) -> NodeTime:
    sizes = ("activation_size", "parameter_size", "output_size")
    return NodeTime(
        operator=str(event.args.get("op_name", "")),
        seconds=event.dur * _MICROSECOND,
        inputs=_shapes(event.args.get("input_type_shape", [])),
        outputs=_shapes(event.args.get("output_type_shape", [])),
        bytes=sum(int(event.args.get(name, 0)) for name in sizes),
    )


def _shapes(values: list[dict[str, list[int]]]) -> tuple[Shape, ...]:
    """The shapes of `[{"float": [64, 576]}, ...]`."""
    return tuple(tuple(shape) for value in values for shape in value.values())
