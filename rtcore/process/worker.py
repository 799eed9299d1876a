"""The engine process: loads an engine, runs its steps, and talks over one ipc socket.

Started by `rtcore/process/child.py` as ``python -P -m rtcore.process.worker``. It ignores SIGINT and SIGTERM,
which a terminal or a service manager sends to every process of a server: the parent decides when it ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from ops.errors import EngineError, OrtolanError
from rtcore.config import EngineConfig
from rtcore.failure import failure_of
from rtcore.process import messages
from rtcore.process.messages import IPC, Failed, Ready, Start
from rtcore.process.orphan import wake_when_orphaned

if TYPE_CHECKING:
    from rtcore.engine import Engine

EngineFactory = Callable[[str, EngineConfig], "Engine"]


def resolve_factory(name: str) -> EngineFactory:
    """Find `module:function` or `/path/to/file.py:function`; raises EngineError when there is none."""
    place, _, attribute = name.rpartition(":")
    module: ModuleType
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None:
            raise EngineError(f"There is no engine factory at {place}.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    factory: EngineFactory | None = getattr(module, attribute, None)
    if factory is None:
        raise EngineError(f"There is no engine factory {attribute!r} in {place}.")
    return factory


class _OneLine(logging.Formatter):
    """A line a record; of an exception only its type and message, the full report crosses in Failed."""

    def formatException(self, ei: Any) -> str:
        return f"{ei[0].__name__}: {ei[1]}"


def main() -> int:
    began = time.monotonic()
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wake_when_orphaned()
    start = _read_start(sys.stdin.buffer)
    if start is None:
        return 0
    threading.Thread(target=_end_with_parent, args=(sys.stdin.fileno(), start.address), daemon=True).start()

    from rtcore.process.loop import EngineLoop, EngineSocket

    socket = EngineSocket(start.address)
    try:
        engine = resolve_factory(start.factory)(start.bundle, start.config)
        try:
            # What loading made lives as long as the engine: no collection during a step has to visit it again.
            gc.collect()
            gc.freeze()
            socket.send(Ready(engine.context_length, engine.vocab_size, time.monotonic() - began))
            EngineLoop(engine, socket, start.heartbeat).run()
        finally:
            engine.close()
    except Exception as error:
        socket.send(_report(error))
        return 3
    finally:
        socket.close()
    return 0


def _report(error: Exception) -> Failed:
    detail = traceback.format_exc(limit=-20)
    if isinstance(error, OrtolanError):
        return Failed(failure_of(error), deliberate=True, detail=detail)
    what = "The engine failed in a way that it does not know."
    unforeseen = EngineError(what, why=f"{type(error).__name__}: {error}.")
    return Failed(failure_of(unforeseen), deliberate=False, detail=detail)


def _read_start(stream: BinaryIO) -> Start | None:
    """The Start message, or None when the parent went away before it sent one."""
    size = int.from_bytes(stream.read(4), "little")
    frame = stream.read(min(size, messages.MAX_MESSAGE_BYTES))
    try:
        return messages.decode_start(frame)
    except msgspec.DecodeError:
        return None


def _end_with_parent(descriptor: int, address: str) -> None:
    """Wait for the parent's end of the pipe to close, also while a step is stuck in native code; a process that is
    stopped is woken for it (`wake_when_orphaned`).

    Reads the descriptor itself: a thread blocked in a buffered reader would hold its lock at exit. A parent that
    was killed has left the socket's private folder behind; one that closed the pipe itself removes it too.
    """
    while os.read(descriptor, 1):
        pass
    socket = Path(address.removeprefix(IPC))
    with contextlib.suppress(OSError):
        socket.unlink(missing_ok=True)
        socket.parent.rmdir()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
