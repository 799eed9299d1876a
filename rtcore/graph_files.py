"""Which files an ONNX graph maps: its external-data locations, read without the onnx package.

Wire format: https://protobuf.dev/programming-guides/encoding. Field numbers:
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# Message name -> {field number: message name of that field}. Only the ways to a TensorProto are listed.
_PATHS: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 25: "Function"},
    "Function": {7: "Node", 11: "Attribute"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
}
_KEY, _VALUE = 1, 2


def external_locations(model: bytes) -> set[str]:
    """The `location` of every tensor of a serialised ModelProto that lies in another file.

    Raises ValueError when the bytes are no protobuf message.
    """
    found: set[str] = set()
    pending: list[tuple[str, memoryview]] = [("Model", memoryview(model))]
    while pending:
        kind, message = pending.pop()
        if kind == "Entry":
            entry = {field: content for field, content in fields(message) if field in (_KEY, _VALUE)}
            if bytes(entry.get(_KEY, b"")) == b"location":
                found.add(bytes(entry.get(_VALUE, b"")).decode())
            continue
        inner = _PATHS[kind]
        pending += [(inner[field], content) for field, content in fields(message) if field in inner]
    return found


def fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and content of each length-delimited field of a message; the others are skipped."""
    position, end = 0, len(message)
    while position < end:
        tag, position = _varint(message, position)
        wire = tag & 7
        if wire == _VARINT:
            _, position = _varint(message, position)
        elif wire == _FIXED64:
            position += 8
        elif wire == _FIXED32:
            position += 4
        elif wire == _BYTES:
            length, position = _varint(message, position)
            if position + length > end:
                raise ValueError("a field is longer than its message")
            yield tag >> 3, message[position : position + length]
            position += length
        else:
            raise ValueError(f"wire type {wire} does not exist")
    if position > end:
        raise ValueError("a message is cut short")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """The variable-length integer at `position`, and the position after it."""
    value = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise ValueError("an integer is cut short or too long")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
