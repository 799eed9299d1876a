"""The simulated rounding of activations against ONNX Runtime's own, one product at a time."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from export.simulate import _attention, _coded, _halved, round_activations
from ops.reference.paged_attention import AttentionAttributes, attend, stored

pytestmark = pytest.mark.export
ROWS, OUTPUTS = 5, 48


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("columns", "group"), [(128, 32), (100, 32), (64, 128), (40, 64)])
def test_rounding_is_that_of_the_kernel(bits: int, columns: int, group: int) -> None:
    random = np.random.default_rng(bits * columns + group)
    blocks = -(-columns // group)
    codes = random.integers(0, 2**bits, (OUTPUTS, blocks * group)).astype(np.uint8)
    codes[:, columns:] = 2 ** (bits - 1)
    scales = random.normal(0, 0.01, (OUTPUTS, blocks)).astype(np.float32)
    packed = codes if bits == 8 else codes[:, 0::2] | codes[:, 1::2] << 4
    x = random.normal(0, 1, (ROWS, columns)).astype(np.float32)
    x[1] = 0
    y = _product(x, packed.reshape(OUTPUTS, blocks, -1), scales, bits, group)
    weight = (codes.astype(np.float32) - 2 ** (bits - 1)) * np.repeat(scales, group, axis=1)
    rounded = round_activations(torch.from_numpy(x), group).numpy()
    expected = rounded @ weight[:, :columns].T
    # Sums of `columns` products of float32: their rounding, against that of the activations, which is far larger.
    noise = 2.0**-23 * columns * np.abs(expected).max()
    assert np.abs(y - expected).max() <= noise
    assert np.abs(y - x @ weight[:, :columns].T).max() > 10 * noise


def _product(x: np.ndarray, values: np.ndarray, scales: np.ndarray, bits: int, group: int) -> np.ndarray:
    node = helper.make_node(
        "MatMulNBits",
        ["x", "values", "scales"],
        ["y"],
        domain="com.microsoft",
        K=x.shape[1],
        N=OUTPUTS,
        bits=bits,
        block_size=group,
        accuracy_level=4,
    )
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", x.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", OUTPUTS])],
        [numpy_helper.from_array(values, "values"), numpy_helper.from_array(scales, "scales")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_keys_and_values_are_coded_as_the_operator_does() -> None:
    heads = np.random.default_rng(1).normal(0, 2, (7, 3, 24)).astype(np.float32)
    heads[2, 1] = 0.0
    codes, scales = stored(heads, np.zeros(0, np.int8))
    assert scales is not None and np.abs(codes).max() == 127
    expected = codes * scales[..., None]
    assert np.abs(expected - heads).max() <= scales.max() / 2 + 1e-6
    np.testing.assert_allclose(_coded(torch.from_numpy(heads)).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_is_that_of_the_operator(sinks: bool, window: int) -> None:
    random = np.random.default_rng(5)
    queries, keys, values = (random.normal(0, 1, (9, heads, 16)).astype(np.float32) for heads in (4, 2, 2))
    given = random.normal(0, 1, 4).astype(np.float32) if sinks else None
    attributes = AttentionAttributes(heads=4, kv_heads=2, scale=0.25, window=window)
    expected = []
    for place, query in enumerate(queries):
        seen = slice(max(0, place - window + 1) if window else 0, place + 1)
        halves = (part[seen].astype(np.float16).astype(np.float32) for part in (keys, values))
        expected.append(attend(query, *halves, attributes, given))
    q, k, v = (torch.from_numpy(part.transpose(1, 0, 2)[None].copy()) for part in (queries, keys, values))
    sunk = None if given is None else torch.from_numpy(given)
    module = torch.nn.Identity()
    found, _ = _attention(_halved, module, q, k, v, None, 0.25, sliding_window=window or None, s_aux=sunk)
    np.testing.assert_allclose(found[0].numpy(), np.stack(expected), atol=1e-5)
