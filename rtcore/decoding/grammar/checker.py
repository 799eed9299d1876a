"""The process that tries out grammars before the engine compiles them, started as ``python -P -m``.

A grammar comes from whoever may send requests, and compiling one can take minutes, gigabytes, or more stack than
a thread has, none of which can be stopped from within. Here it can: this process is ended and started anew.
Messages are msgpack, each after its length in 4 bytes; it ends when its standard input closes.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from rtcore.decoding.grammar.limits import CHECK_BYTES
from rtcore.decoding.grammar.source import GrammarError, new_matcher, shorten
from rtcore.decoding.grammar.vocabulary import GrammarVocabulary
from rtcore.process.orphan import wake_when_orphaned

MAX_FRAME_BYTES = 64 << 20
_PROBED_TOKENS = 8
_STRIDE = 7919
_STACK_BYTES = 2 << 20
_NICE = 5
_PAGE = resource.getpagesize()


class Check(msgspec.Struct, frozen=True):
    """Try a grammar; kind and source as in StructuredOutputs, seconds of processor time."""

    kind: str
    source: str
    seconds: float


class Checked(msgspec.Struct, frozen=True):
    """The answer: what is wrong, empty if nothing is, and about how many bytes a compiled one takes."""

    error: str
    size: int


def write_frame(stream: BinaryIO, message: msgspec.Struct) -> None:
    frame = msgspec.msgpack.encode(message)
    stream.write(len(frame).to_bytes(4, "little") + frame)
    stream.flush()


def _read_frame(stream: BinaryIO) -> bytes:
    """The next message; empty when the other side is gone."""
    size = int.from_bytes(stream.read(4), "little")
    return stream.read(min(size, MAX_FRAME_BYTES))


def main() -> int:
    with contextlib.suppress(OSError):  # where priorities are not ours to change
        os.nice(_NICE)
    wake_when_orphaned()
    frame = _read_frame(sys.stdin.buffer)
    if not frame:
        return 0
    vocabulary = msgspec.msgpack.decode(frame, type=GrammarVocabulary)
    tokenizer = vocabulary.tokenizer()
    _limit_memory()
    # With less stack than the engine's thread has, so that what is too deep for that one ends here.
    threading.stack_size(_STACK_BYTES)
    serving = threading.Thread(target=_serve, args=(tokenizer,))
    serving.start()
    serving.join()
    return 0


def _serve(tokenizer: Any) -> None:
    write_frame(sys.stdout.buffer, Checked("", 0))
    while frame := _read_frame(sys.stdin.buffer):
        check = msgspec.msgpack.decode(frame, type=Check)
        _limit_time(check.seconds)
        write_frame(sys.stdout.buffer, _answer(tokenizer, check))


def _answer(tokenizer: Any, check: Check) -> Checked:
    before = _resident()
    try:
        matcher = new_matcher(tokenizer, check.kind, check.source)
        probe(matcher, tokenizer.vocab_size)
    except GrammarError as error:
        return Checked(str(error), 0)
    except MemoryError:
        return Checked("It takes too much memory", 0)
    return Checked("", max(0, _resident() - before))


def probe(matcher: Any, vocab_size: int) -> None:
    """Follow a grammar for a few tokens, since much of the work is put off until then. Raises GrammarError."""
    mask = np.zeros(-(-vocab_size // 32), np.uint32)
    for number in range(_PROBED_TOKENS):
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if matcher.is_error() or not len(allowed):
            error = shorten(matcher.get_error())
            raise GrammarError("Nothing matches it" if error.startswith("NoExtension") else error)
        if matcher.is_stopped():
            return
        if not matcher.consume_token(int(allowed[_STRIDE * number % len(allowed)])):
            raise GrammarError(shorten(matcher.get_error()))


def _limit_memory() -> None:
    """Bound what may still be allocated; where the system has no such limit, time alone bounds it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * _PAGE + CHECK_BYTES,) * 2)


def _limit_time(seconds: float) -> None:
    """Have the system end this process with SIGXCPU when it has used so many seconds more, rounded up."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _resident() -> int:
    """Bytes of memory of this process, or the most it ever had where that is all the system tells."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * _PAGE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
