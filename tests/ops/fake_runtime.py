"""As much of ONNX Runtime's C interface as operators for a GPU call, so that they run where there is no GPU.

Memory is never read: a tensor is a shape and an address that nobody looks at. With the driver of fake_driver.c a
node's launches are in its log.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from ops.library import CUDA_KEY, CUDA_TYPE_KEY, library_path

_P, _I64 = ctypes.c_void_p, ctypes.c_int64
_SLOTS = 400
#: Places of functions in a custom operator's table.
_NAME, _CREATE, _COMPUTE = 2, 17, 18
Shape = tuple[int, ...]


class FakeRuntime:
    """The operators of one open device, each of which `run` makes a node of."""

    def __init__(self, device: int, activations: str) -> None:
        self._entries = {CUDA_KEY: str(device), CUDA_TYPE_KEY: activations}
        self._texts: dict[int, Any] = {}
        self._shapes: dict[int, Shape] = {}
        self._numbers = count(4096, 4096)
        self._attributes: dict[str, Any] = {}
        self._inputs: list[int] = []
        self._outputs: dict[int, int] = {}
        self._ops: dict[str, int] = {}
        self._kept: list[Any] = []
        self._table = (_P * _SLOTS)()
        self._fill()
        self._version = ctypes.CFUNCTYPE(_P, ctypes.c_uint32)(lambda version: ctypes.addressof(self._table))
        base = (_P * 2)(ctypes.cast(self._version, _P), None)
        library = ctypes.CDLL(str(library_path()))
        library.RegisterCustomOps.restype = _P
        self._raise(library.RegisterCustomOps(_P(1), ctypes.byref(base)))

    def run(self, op: str, attributes: dict[str, Any], inputs: Sequence[Shape | None]) -> dict[int, Shape]:
        """The shapes of a node's outputs. Raises RuntimeError with the operator's words where it refuses."""
        self._attributes, self._outputs = attributes, {}
        self._inputs = [0 if shape is None else self._value(shape) for shape in inputs]
        members = ctypes.cast(self._ops[op], ctypes.POINTER(_P))
        kernel = _P()
        create = ctypes.CFUNCTYPE(_P, _P, _P, _P, _P)(members[_CREATE])
        self._raise(create(self._ops[op], ctypes.addressof(self._table), 1, ctypes.addressof(kernel)))
        self._raise(ctypes.CFUNCTYPE(_P, _P, _P)(members[_COMPUTE])(kernel, 1))
        return {index: self._shapes[value] for index, value in self._outputs.items()}

    def _raise(self, status: int | None) -> None:
        if status:
            raise RuntimeError(self._texts[status].value.decode())

    def _value(self, shape: Shape) -> int:
        number = next(self._numbers)
        self._shapes[number] = shape
        return number

    def _text(self, text: bytes) -> int:
        buffer = ctypes.create_string_buffer(text)
        self._texts[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def _put(self, slot: int, arguments: Sequence[Any], body: Callable[..., int | None]) -> None:
        function = ctypes.CFUNCTYPE(_P, *arguments)(body)
        self._kept.append(function)
        self._table[slot] = ctypes.cast(function, _P)

    def _string(self, text: str | None, target: int | None, size: int) -> int | None:
        if text is None:
            return self._text(b"there is none")
        content = text.encode() + b"\0"
        if target:
            ctypes.memmove(target, content, len(content))
        ctypes.c_size_t.from_address(size).value = len(content)
        return None

    def _number(self, name: bytes, kind: Any, wanted: type, target: int) -> int | None:
        value = self._attributes.get(name.decode())
        if type(value) is not wanted:
            return self._text(b"there is none")
        kind.from_address(target).value = value
        return None

    def _add(self, op: int) -> None:
        name = ctypes.CFUNCTYPE(ctypes.c_char_p, _P)(ctypes.cast(op, ctypes.POINTER(_P))[_NAME])(op)
        self._ops.setdefault(name.decode(), op)

    def _made(self, index: int, dims: int, rank: int) -> int:
        shape = tuple((_I64 * rank).from_address(dims)) if rank else ()
        return self._outputs.setdefault(index, self._value(shape))

    def _fill(self) -> None:
        size, text = ctypes.c_size_t, ctypes.c_char_p

        def store(target: int, value: int) -> None:
            _I64.from_address(target).value = value

        def dims_of(value: int, target: int, rank: int) -> None:
            (_I64 * rank).from_address(target)[:] = self._shapes[value]

        def attribute(_info: int, name: bytes, target: int | None, length: int) -> int | None:
            value = self._attributes.get(name.decode())
            return self._string(value if isinstance(value, str) else None, target, length)

        put = self._put
        put(0, (ctypes.c_int, text), lambda code, words: self._text(words))
        put(2, (_P,), lambda status: status)
        put(26, (text, _P), lambda name, target: store(target, 1))
        put(27, (_P, _P), lambda domain, op: self._add(op))
        put(28, (_P, _P), lambda options, domain: None)
        put(51, (_P, _P), lambda value, target: store(target, value))
        put(61, (_P, _P), lambda value, target: store(target, len(self._shapes[value])))
        put(62, (_P, _P, size), dims_of)
        put(65, (_P, _P), lambda value, target: store(target, value))
        put(85, (_P, text, _P), lambda info, name, to: self._number(name, ctypes.c_float, float, to))
        put(86, (_P, text, _P), lambda info, name, to: self._number(name, _I64, int, to))
        put(87, (_P, text, _P, _P), attribute)
        put(88, (_P, _P), lambda context, target: store(target, len(self._inputs)))
        put(90, (_P, size, _P), lambda context, index, target: store(target, self._inputs[index]))
        put(91, (_P, size, _P, size, _P), lambda c, i, dims, rank, to: store(to, self._made(i, dims, rank)))
        put(93, (_P,), lambda status: None)
        put(99, (_P,), lambda info: None)
        put(193, (_P, _P), lambda context, target: store(target, 7))
        put(237, (_P, text, _P), lambda o, key, to: store(to, int(key.decode() in self._entries)))
        put(238, (_P, text, _P, _P), lambda o, key, to, n: self._string(self._entries[key.decode()], to, n))
