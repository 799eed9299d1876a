"""A step graph and a sample graph as one graph, joined in their serialised form, without the onnx package.

In protocol buffers a message that follows another is merged into it: repeated fields are appended to, and embedded
messages are merged in turn (https://protobuf.dev/programming-guides/encoding#last-one-wins). Field numbers:
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

from rtcore.graph_files import fields

_MODEL_GRAPH = 7
_NODE, _INPUT, _OUTPUT = 1, 11, 12
_NAME = 1
_BYTES = 2


def joined(step: bytes, sample: bytes, shared: str) -> bytes:
    """The model `step` with the nodes, inputs and outputs of the model `sample` after its own.

    shared: the name of an output of `step` that is an input of `sample`, which then reads it where it was written.
    Both must agree about operator sets. Raises ValueError when `sample` is no protobuf message.
    """
    added = bytearray()
    for graph in (content for number, content in fields(memoryview(sample)) if number == _MODEL_GRAPH):
        for number, content in fields(graph):
            if number in (_NODE, _OUTPUT) or (number == _INPUT and _name(content) != shared):
                added += _field(number, bytes(content))
    return step + _field(_MODEL_GRAPH, bytes(added))


def _name(value: memoryview) -> str:
    """The name of a ValueInfoProto."""
    return next((bytes(content).decode() for number, content in fields(value) if number == _NAME), "")


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
