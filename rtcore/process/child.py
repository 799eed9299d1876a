"""EngineChild: one run of the engine process, its private folder and its standard streams.

Imports little, so that a server can start the engine before it imports anything else.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ops.errors import EngineError
from rtcore.config import EngineConfig
from rtcore.process import messages
from rtcore.process.messages import IPC, LOAD_ENGINE, Start

HEARTBEAT_SECONDS = 1.0
MAX_SOCKET_PATH = 100
"""A Unix socket's path holds 107 bytes at most."""


class EngineChild:
    """A started engine process. It ends by itself when its standard input closes, so never outlives us."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, address: str) -> None:
        self.process = process
        self.folder = folder
        self.address = address
        self.started = time.monotonic()

    @classmethod
    def launch(
        cls,
        bundle: Path,
        config: EngineConfig,
        *,
        heartbeat: float = HEARTBEAT_SECONDS,
        factory: str = LOAD_ENGINE,
    ) -> EngineChild:
        """Start the process and hand it its Start message. Raises EngineError when it cannot be started.

        `-P` keeps the working folder off the child's import path: it may hold a stranger's `server/` or `ops/`.
        """
        try:
            folder = Path(tempfile.mkdtemp(prefix="ortolan-"))
        except OSError as error:
            raise EngineError(
                "There is no folder for temporary files, where the engine's socket belongs.",
                why=f"{error.strerror or error}.",
                remedy="Set TMPDIR to a folder that can be written and has room.",
            ) from error
        socket = folder / "engine.sock"
        try:
            if len(bytes(socket)) > MAX_SOCKET_PATH:
                raise EngineError(
                    f"The folder for temporary files is too deep for a socket: {folder}",
                    remedy="Set TMPDIR to a shorter path, such as /tmp.",
                )
            address = f"{IPC}{socket}"
            start = Start(str(bundle.absolute()), config, address, heartbeat, factory)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rtcore.process.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            frame = messages.encode(start)
            if process.stdin is None:
                raise EngineError("The engine process has no standard input.")
            with contextlib.suppress(BrokenPipeError):  # a child that died already is found by its silence
                process.stdin.write(len(frame).to_bytes(4, "little") + frame)
                process.stdin.flush()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(process, folder, address)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End the process at once; harmless when it has ended."""
        self.process.kill()

    def dispose(self) -> None:
        """Kill what still runs, reap it, close the pipes and remove the folder. Safe to call twice."""
        if self.alive:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # unsent bytes of a child that is gone
                    stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def describe_end(self) -> str:
        """How the process ended, in words; it must have ended."""
        code = self.process.poll()
        if code is None:
            return "it still runs"
        if code < 0:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
            hint = "; the system kills so when memory runs out" if -code == signal.SIGKILL else ""
            return f"it was ended by {name}{hint}"
        return f"it exited with status {code}"
