"""Profiles of ONNX Runtime read back: which node belongs to which run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.errors import ResourceError
from server.bench.profiling.trace import read_runs


def event(name: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    return {"cat": "Node" if args else "Session", "name": name, "ts": ts, "dur": dur, "args": args, "ph": "X"}


def node(ts: int, dur: int, operator: str) -> dict[str, Any]:
    return event(
        f"{operator}_0_kernel_time",
        ts,
        dur,
        op_name=operator,
        input_type_shape=[{"float": [2, 8]}, {"uint8": [1, 1, 64]}],
        output_type_shape=[{"float": [2, 16]}],
        activation_size="64",
        parameter_size="64",
        output_size="128",
    )


def test_nodes_go_to_the_run_that_they_are_in(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    events = [
        node(1, 1, "BeforeAnyRun"),
        event("model_run", 100, 50),
        node(130, 5, "Second"),
        node(110, 10, "First"),
        event("Second_fence_before", 129, 1, op_name="Second"),
        event("model_run", 200, 50),
        node(210, 20, "First"),
    ]
    file.write_text(json.dumps(events))
    first, second = read_runs(file)
    assert [item.operator for item in first.nodes] == ["First", "Second"]
    assert [item.operator for item in second.nodes] == ["First"]
    assert first.seconds == pytest.approx(50e-6)
    node_time = first.nodes[0]
    assert node_time.seconds == pytest.approx(10e-6) and node_time.bytes == 256
    assert node_time.inputs == ((2, 8), (1, 1, 64)) and node_time.outputs == ((2, 16),)


@pytest.mark.parametrize("content", [b"", b"[{", b'[{"cat": 1}]', b"\xff"])
def test_what_is_no_profile_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(content)
    with pytest.raises(ResourceError, match="cannot be read"):
        read_runs(file)
    with pytest.raises(ResourceError, match="cannot be read"):
        read_runs(tmp_path / "absent.json")
