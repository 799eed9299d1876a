"""CudaDevice: one GPU through the operators' library, without torch: memory, copies, kernels, a stream."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.errors import EngineError, OutOfDeviceMemory, WrongTarget
from ops.library import library

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "open": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    "close": (ctypes.c_int64,),
    "describe": (ctypes.c_int64, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    "memory": (ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p),
    "add_kernel": (
        *(ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
    ),
    "allocate": (ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p),
    "release": (ctypes.c_int64, ctypes.c_uint64),
    "allocate_host": (ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p),
    "release_host": (ctypes.c_int64, ctypes.c_void_p),
    "to_device": (ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t),
    "to_host": (ctypes.c_int64, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t),
    "copy": (ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t),
    "fill": (ctypes.c_int64, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t),
    "synchronize": (ctypes.c_int64,),
    "event": (ctypes.c_int64, ctypes.c_void_p),
    "elapsed": (ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "release_event": (ctypes.c_int64, ctypes.c_void_p),
    "await": (ctypes.c_int64, ctypes.c_void_p),
    "sample": (ctypes.c_int64, ctypes.c_void_p),
    "reserve_sample": (ctypes.c_int64, ctypes.c_int64, ctypes.c_int64),
    "feed": (ctypes.c_int64, *(ctypes.c_uint64,) * 3, ctypes.c_int64),
}


@cache
def _functions() -> dict[str, Any]:
    found = {}
    for name, arguments in _SIGNATURES.items():
        function = getattr(library(), f"ortolan_cuda_{name}")
        function.argtypes, function.restype = arguments, ctypes.c_char_p
        found[name] = function
    return found


@cache
def misfit() -> str:
    """How operators end their texts where a bundle's kernels or weights are not what this version launches.

    They come through ONNX Runtime too, which hands on nothing of a failure but its text.
    """
    function = library().ortolan_cuda_misfit
    function.argtypes, function.restype = (), ctypes.c_char_p
    text: bytes = function()
    return text.decode()


def _call(name: str, *arguments: Any) -> None:
    problem = _functions()[name](*arguments)
    if problem is None:
        return
    text = problem.decode(errors="replace")
    if "OUT_OF_MEMORY" in text:
        raise OutOfDeviceMemory(
            "The GPU has no memory left.",
            why=text,
            remedy="Give the cache less (cache_bytes), run fewer sequences (max_sequences), or free the GPU.",
        )
    raise EngineError("The GPU failed.", why=text)


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel as `CudaDevice.add_kernel` takes it; see rtcore.kernels for the fields."""

    key: str
    entry: str
    arguments: str
    warps: int
    shared: int
    rows: int
    columns: int
    constants: Mapping[str, int]
    image: bytes


class SampleCall(ctypes.Structure):
    """What `CudaDevice.sample` is given: addresses of arrays as the operator Sample has them (ops.schema.SAMPLE).

    pending: int32 [rows], the row of `ids`, as they are before the call, whose token the row's lists do not count
    yet; -1 none. top_ids, top_logprobs: [rows, MOST_LOGPROBS]. masked, listed: whether any row has a mask, lists.
    drawn, cut: whether any row's token is drawn, and from less than all tokens. told: whether any row's
    log-probabilities are asked for.
    """

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("logits", "settings", "numbers", "pending")),
        *((name, ctypes.c_uint64) for name in ("token_start", "token_ids", "token_counts")),
        *((name, ctypes.c_uint64) for name in ("bias_start", "bias_ids", "bias_values", "masks")),
        *((name, ctypes.c_uint64) for name in ("ids", "status", "logprobs", "ranks", "top_ids", "top_logprobs")),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "masked", "listed", "drawn", "cut", "told")),
    )


MOST_LOGPROBS = 20
"""The likeliest tokens that a row may ask for."""


class CudaDevice:
    """A GPU that this process has opened.

    name, architecture (90 is sm_90), multiprocessors. stream: the address of the stream that everything runs on,
    for ONNX Runtime's user_compute_stream. number: what a session's entry ortolan.cuda names it by.
    Not thread-safe. Raises WrongTarget where there is no driver or no such GPU.
    """

    def __init__(self, ordinal: int = 0) -> None:
        number, stream = ctypes.c_int64(), ctypes.c_void_p()
        problem = _functions()["open"](ordinal, ctypes.byref(number), ctypes.byref(stream))
        if problem is not None:
            what, _, remedy = problem.decode(errors="replace").partition(". ")
            raise WrongTarget(
                "This machine cannot run the target cuda.", why=f"{what}.", remedy=remedy, param="target"
            )
        self.number = number.value
        self._held: set[int] = set()
        self._pinned: set[int] = set()
        self.stream = int(stream.value or 0)
        name, architecture, processors = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
        _call("describe", self.number, name, 256, ctypes.byref(architecture), ctypes.byref(processors))
        self.name = name.value.decode(errors="replace")
        self.architecture = architecture.value
        self.multiprocessors = processors.value

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _call("memory", self.number, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def add_kernel(self, kernel: Kernel) -> None:
        """Load a compiled kernel; the binary may be given up afterwards."""
        count = len(kernel.constants)
        names = (ctypes.c_char_p * count)(*(name.encode() for name in kernel.constants))
        values = (ctypes.c_int * count)(*kernel.constants.values())
        texts = (kernel.key.encode(), kernel.entry.encode(), kernel.arguments.encode())
        numbers = (kernel.warps, kernel.shared, kernel.rows, kernel.columns, count)
        _call("add_kernel", self.number, *texts, *numbers, names, values, kernel.image)

    def allocate(self, size: int) -> int:
        """The address of `size` new bytes of the GPU's memory."""
        address = ctypes.c_uint64()
        _call("allocate", self.number, size, ctypes.byref(address))
        self._held.add(address.value)
        return address.value

    def release(self, address: int) -> None:
        """Give memory back; nothing that is queued may use it any more."""
        self._held.discard(address)
        _call("release", self.number, address)

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """Pinned host memory, uint8 [size]; `release_pinned` gives it back."""
        address = ctypes.c_void_p()
        _call("allocate_host", self.number, size, ctypes.byref(address))
        self._pinned.add(int(address.value or 0))
        buffer = (ctypes.c_uint8 * size).from_address(int(address.value or 0))
        return np.ctypeslib.as_array(buffer)

    def release_pinned(self, memory: NDArray[np.uint8]) -> None:
        """Give pinned memory back; no array may look at it any more."""
        self._pinned.discard(memory.ctypes.data)
        _call("release_host", self.number, memory.ctypes.data)

    def to_device(self, target: int, source: NDArray[Any]) -> None:
        """Queue a copy of a contiguous array, which must stay as it is until the copy is done."""
        _call("to_device", self.number, target, source.ctypes.data, source.nbytes)

    def to_host(self, target: NDArray[Any], source: int) -> None:
        """Queue a copy that fills a contiguous array."""
        _call("to_host", self.number, target.ctypes.data, source, target.nbytes)

    def copy(self, target: int, source: int, size: int) -> None:
        """Queue a copy within the GPU."""
        _call("copy", self.number, target, source, size)

    def fill(self, target: int, size: int, value: int = 0) -> None:
        """Queue the writing of one byte value."""
        _call("fill", self.number, target, value, size)

    def sample(self, call: SampleCall) -> None:
        """Queue the choice of a token for each row of logits."""
        _call("sample", self.number, ctypes.byref(call))

    def reserve_sample(self, rows: int, columns: int) -> None:
        """Take the memory that `sample` needs for up to `rows` rows of `columns` logits, whatever they ask."""
        _call("reserve_sample", self.number, rows, columns)

    def feed(self, input_ids: int, token_source: int, ids: int, tokens: int) -> None:
        """Queue the taking of sampled `ids` int64 into input_ids int64 [tokens], where token_source int32 [tokens]
        names their row and is not -1."""
        _call("feed", self.number, input_ids, token_source, ids, tokens)

    def synchronize(self) -> None:
        """Wait until everything that was queued is done."""
        _call("synchronize", self.number)

    def record(self, event: int | None = None) -> int:
        """Queue an event, a new one unless one is given."""
        handle = ctypes.c_void_p(event)
        _call("event", self.number, ctypes.byref(handle))
        return int(handle.value or 0)

    def wait(self, event: int) -> None:
        """Wait until what was queued before an event is done."""
        _call("await", self.number, event)

    def elapsed(self, start: int, end: int) -> float:
        """Milliseconds between two events, once the second has come."""
        milliseconds = ctypes.c_float()
        _call("elapsed", self.number, start, end, ctypes.byref(milliseconds))
        return milliseconds.value

    def release_event(self, event: int) -> None:
        _call("release_event", self.number, event)

    def close(self) -> None:
        """Give back stream, kernels and all memory, also what was not released. Safe to call twice."""
        with ExitStack() as steps:  # all of them, also after one that failed; the device itself last
            steps.callback(_call, "close", self.number)
            for address in self._held:
                steps.callback(_call, "release", self.number, address)
            for pinned in self._pinned:
                steps.callback(_call, "release_host", self.number, pinned)
            self._held.clear()
            self._pinned.clear()
