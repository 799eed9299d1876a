"""The sample graph: one node, from the logits that a step leaves to tokens. It depends on the vocabulary alone."""

from __future__ import annotations

from typing import Any

from ops.schema import DOMAIN, SAMPLE, VERSION, Input

IR_VERSION = 10
_OPSET = 21


def sample_graph(vocab_size: int) -> bytes:
    """The graph as ONNX: inputs and outputs are those of the operator Sample, by its names."""
    import onnx

    types = {
        "float32": onnx.TensorProto.FLOAT,
        "I32": onnx.TensorProto.INT32,
        "I64": onnx.TensorProto.INT64,
        "U32": onnx.TensorProto.UINT32,
    }

    def value(one: Input) -> Any:
        return onnx.helper.make_tensor_value_info(one.name, types[one.type], _shape(one.shape, vocab_size))

    node = onnx.helper.make_node(
        SAMPLE.name,
        [one.name for one in SAMPLE.inputs],
        [one.name for one in SAMPLE.outputs],
        domain=DOMAIN,
    )
    graph = onnx.helper.make_graph(
        [node], "sample", [value(one) for one in SAMPLE.inputs], [value(one) for one in SAMPLE.outputs]
    )
    opsets = [onnx.helper.make_opsetid("", _OPSET), onnx.helper.make_opsetid(DOMAIN, VERSION)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _shape(words: str, vocab_size: int) -> list[int | str]:
    """The dimensions that a schema's shape stands for: numbers, the vocabulary, or names of their own."""
    known = {"V": vocab_size, "ceil(V / 32)": -(-vocab_size // 32)}
    dims = [dim.strip() for dim in words.strip("[]").split(",")]
    return [known.get(dim, int(dim) if dim.isdecimal() else dim) for dim in dims]
