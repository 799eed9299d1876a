"""ServerProcess: ``ortolan serve`` as a user starts it, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

READY_SECONDS = 60


def ortolan() -> list[str]:
    """The installed command."""
    return [str(Path(sys.executable).with_name("ortolan"))]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """A context manager; `ready_seconds` is the time from the start of the process to the first 200 of /ready."""

    def __init__(
        self,
        bundle: Path,
        log: Path,
        *arguments: str,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.ready_seconds = 0.0
        self.log = log
        self._command = [*ortolan(), "serve", str(bundle), "--port", str(self.port), *arguments]
        self._cwd = cwd
        self._env = None if env is None else {**os.environ, **env}

    def __enter__(self) -> ServerProcess:
        start = time.perf_counter()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, cwd=self._cwd, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        while not self.ready():
            if self.process.poll() is not None or time.perf_counter() - start > READY_SECONDS:
                self.__exit__()
                raise AssertionError(f"the server did not become ready:\n{self.log.read_text()}")
            time.sleep(0.02)
        self.ready_seconds = time.perf_counter() - start
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def post(self, path: str, body: object) -> tuple[int, str]:
        """Status and text of the answer."""
        request = urllib.request.Request(
            self.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.base}/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
