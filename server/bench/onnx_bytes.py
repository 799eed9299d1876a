"""The bytes of an ONNX model with a single node, written without the onnx package.

Only what such a model needs of the protobuf wire format (https://protobuf.dev/programming-guides/encoding)
and of onnx.proto (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto): field numbers are from there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IR_VERSION = 8
OPSET = 17
ELEMENT_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "uint32": 12}


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _data(field: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def _value_info(name: str, dtype: str, shape: tuple[int | str, ...]) -> bytes:
    dims = b"".join(_data(1, _integer(1, size) if isinstance(size, int) else _data(2, size)) for size in shape)
    tensor = _integer(1, ELEMENT_TYPES[dtype]) + _data(2, dims)
    return _data(1, name) + _data(2, _data(1, tensor))


def product_model(op_type: str, rows: int, weight: NDArray[np.generic], left: str, result: str) -> bytes:
    """An ONNX model ``y = op_type(x, weight)``: x is `left` [rows, K], weight [K, N] a constant, y `result`.

    op_type: MatMul (float32) or MatMulInteger (uint8 by int8 to int32).
    """
    inner, columns = weight.shape
    node = _data(1, "x") + _data(1, "w") + _data(2, "y") + _data(4, op_type)
    constant = (
        _integer(1, inner)
        + _integer(1, columns)
        + _integer(2, ELEMENT_TYPES[weight.dtype.name])
        + _data(8, "w")
        + _data(9, np.ascontiguousarray(weight).tobytes())
    )
    graph = (
        _data(1, node)
        + _data(2, op_type)
        + _data(5, constant)
        + _data(11, _value_info("x", left, (rows, inner)))
        + _data(12, _value_info("y", result, (rows, columns)))
    )
    return _integer(1, IR_VERSION) + _data(7, graph) + _data(8, _data(1, "") + _integer(2, OPSET))


Value = tuple[str, str, tuple[int | str, ...]]
"""Name, element type and shape of an input or output; a dimension that may vary has a name."""


def operator_model(op_type: str, domain: str, inputs: list[Value], outputs: list[Value]) -> bytes:
    """An ONNX model of one node of another domain than ONNX's own, version 1, without attributes."""
    node = b"".join(_data(1, value[0]) for value in inputs) + b"".join(_data(2, value[0]) for value in outputs)
    graph = (
        _data(1, node + _data(4, op_type) + _data(7, domain))
        + _data(2, op_type)
        + b"".join(_data(11, _value_info(*value)) for value in inputs)
        + b"".join(_data(12, _value_info(*value)) for value in outputs)
    )
    domains = _data(8, _data(1, "") + _integer(2, OPSET)) + _data(8, _data(1, domain) + _integer(2, 1))
    return _integer(1, IR_VERSION) + _data(7, graph) + domains
