"""External-data locations are found wherever a tensor can hide in an ONNX model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.errors import BundleDamaged
from rtcore.bundle import Bundle
from rtcore.graph_files import external_locations
from tests.rtcore.handmade import GRAPH, WEIGHTS, manifest_of, replace_file, step_graph, weights, write_bundle

onnx = pytest.importorskip("onnx")


def tensor(location: str) -> Any:
    proto = onnx.TensorProto(name=location, dims=[1], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "4")):
        entry = proto.external_data.add()
        entry.key, entry.value = key, value
    return proto


def test_every_hiding_place() -> None:
    helper = onnx.helper
    inner = helper.make_graph([], "inner", [], [], [tensor("subgraph")])
    sparse = onnx.SparseTensorProto(values=tensor("sparse values"), indices=tensor("sparse indices"))
    nodes = [
        helper.make_node("Constant", [], ["a"], value=tensor("attribute")),
        helper.make_node("If", ["c"], ["b"], then_branch=inner, else_branch=inner),
    ]
    many = nodes[1].attribute.add()
    many.name, many.type = "many", onnx.AttributeProto.TENSORS
    many.tensors.append(tensor("attribute list"))
    graph = helper.make_graph(
        nodes, "g", [], [], [tensor("initialiser"), onnx.TensorProto(name="inline", raw_data=b"x")]
    )
    graph.sparse_initializer.append(sparse)
    function = helper.make_function(
        "d", "f", [], ["y"], [helper.make_node("Constant", [], ["y"], value=tensor("function"))], []
    )
    model = helper.make_model(graph, functions=[function])
    assert external_locations(model.SerializeToString()) == {
        "initialiser",
        "attribute",
        "attribute list",
        "subgraph",
        "sparse values",
        "sparse indices",
        "function",
    }


@given(st.binary(max_size=60))
def test_any_bytes_end_in_a_set_or_a_value_error(content: bytes) -> None:
    try:
        assert all(isinstance(location, str) for location in external_locations(content))
    except ValueError:
        assert content


@pytest.mark.parametrize("location", ["../outside", "/etc/passwd", "weights/../../x", GRAPH])
def test_a_graph_that_maps_what_it_may_not(tmp_path: Path, location: str) -> None:
    folder = write_bundle(tmp_path / "model")
    places = {name: (0, tensor.nbytes) for name, tensor in weights().items()}
    replace_file(folder, GRAPH, step_graph(weights(), places, location))
    with Bundle.open(folder) as bundle, pytest.raises(BundleDamaged) as caught:
        bundle.read_graph(manifest_of(folder).variants[0])
    assert location in str(caught.value)
    assert caught.value.param in (location, GRAPH)


def test_a_graph_that_maps_its_weights(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "model")
    with Bundle.open(folder) as bundle:
        assert external_locations(bundle.read_graph(bundle.manifest.variants[0])) == {WEIGHTS}
