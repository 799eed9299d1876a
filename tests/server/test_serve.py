"""The server as a process: its start, its signals, its exit codes, and that nothing outlives it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests/server/serve_fake.py"


class Process:
    """A running server process."""

    def __init__(self, arguments: list[str], cwd: Path) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-P", *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.url = ""
        self.curl = ""

    def wait_ready(self) -> None:
        """Read what it prints when it is up."""
        assert self.popen.stdout is not None
        first, self.curl = self.popen.stdout.readline(), self.popen.stdout.readline()
        found = re.search(r"http://\S+?(?=\.)(?:\.\d+){3}:\d+", first)
        assert found, (first, self.popen.stderr and self.popen.stderr.read())
        self.url = found[0]

    def post(self, body: dict[str, Any]) -> urllib.request.Request:
        data = json.dumps(body).encode()
        return urllib.request.Request(f"{self.url}/v1/completions", data, {"Content-Type": "application/json"})

    def end(self, timeout: float = 20) -> tuple[int, str]:
        """The exit code and standard error, once it has ended."""
        _, errors = self.popen.communicate(timeout=timeout)
        return self.popen.returncode, errors


@contextlib.contextmanager
def serving(arguments: list[str], cwd: Path, *, ready: bool = True) -> Iterator[Process]:
    process = Process(arguments, cwd)
    try:
        if ready:
            process.wait_ready()
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.communicate()


def fake(factory: str, bundle: Path, *flags: str) -> list[str]:
    return [str(SCRIPT), factory, str(bundle), "--port", "0", *flags]


def children(process: Process) -> list[psutil.Process]:
    return psutil.Process(process.popen.pid).children(recursive=True)


def gone(process: psutil.Process, seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_the_printed_curl_line_works_and_sigterm_ends_it(fake_bundle: Path, tmp_path: Path) -> None:
    with serving(fake("quick", fake_bundle), tmp_path) as process:
        command = shlex.split(process.curl)
        assert command[0] == "curl"
        body = json.loads(command[command.index("-d") + 1])
        assert body["messages"]
        header, value = command[command.index("-H") + 1].split(": ")
        request = urllib.request.Request(command[1], json.dumps(body).encode(), {header: value})
        with urllib.request.urlopen(request, timeout=10) as response:
            assert json.load(response)["choices"][0]["message"]["role"] == "assistant"
        engine = children(process)
        assert len(engine) == 1
        process.popen.send_signal(signal.SIGTERM)
        code, errors = process.end()
        assert (code, "Traceback" in errors) == (0, False)
        assert gone(engine[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_finish(fake_bundle: Path, tmp_path: Path, number: signal.Signals) -> None:
    with serving(fake("slow", fake_bundle), tmp_path) as process:
        body = {"prompt": [7], "max_tokens": 50, "ignore_eos": True, "stream": True}
        with urllib.request.urlopen(process.post(body), timeout=20) as response:
            response.readline()
            process.popen.send_signal(number)
            text = response.read().decode()
        assert text.rstrip().endswith("data: [DONE]")
        assert process.end()[0] == 0


def test_a_second_signal_hurries(fake_bundle: Path, tmp_path: Path) -> None:
    with serving(fake("slow", fake_bundle), tmp_path) as process:
        body = {"prompt": [7], "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with urllib.request.urlopen(process.post(body), timeout=20) as response:
            response.readline()
            process.popen.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            assert process.popen.poll() is None
            process.popen.send_signal(signal.SIGTERM)
            text = response.read().decode()
        assert '"error"' in text
        assert "[DONE]" not in text
        code, errors = process.end()
        assert (code, "Traceback" in errors) == (0, False)


def test_draining_ends_in_time(fake_bundle: Path, tmp_path: Path) -> None:
    with serving(fake("slow", fake_bundle, "--drain-timeout", "0.3"), tmp_path) as process:
        body = {"prompt": [7], "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with urllib.request.urlopen(process.post(body), timeout=20) as response:
            response.readline()
            process.popen.send_signal(signal.SIGTERM)
            assert '"error"' in response.read().decode()
        assert process.end()[0] == 0


def test_a_signal_while_loading_ends_it(fake_bundle: Path, tmp_path: Path) -> None:
    with serving(fake("never_loads", fake_bundle), tmp_path, ready=False) as process:
        deadline = time.monotonic() + 20
        while not children(process) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.5)
        process.popen.send_signal(signal.SIGTERM)
        code, errors = process.end()
        assert code in (0, -signal.SIGTERM)
        assert "Traceback" not in errors


@pytest.mark.parametrize("ready", [True, False])
def test_nothing_outlives_a_killed_server(
    fake_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        with serving(fake("slow" if ready else "never_loads", fake_bundle), tmp_path, ready=ready) as process:
            deadline = time.monotonic() + 20
            while not children(process) and time.monotonic() < deadline:
                time.sleep(0.02)
            engine = children(process)[0]
            process.popen.kill()
            assert gone(engine)
        assert not list(Path(folder).iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no process that its parent died")
def test_a_stopped_engine_ends_with_a_killed_server(
    fake_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Ctrl-Z and a kill of the server alone."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        with serving(fake("slow", fake_bundle), tmp_path) as process:
            engine = children(process)[0]
            engine.suspend()
            process.popen.kill()
            assert gone(engine)
        assert not list(Path(folder).iterdir())


def test_a_start_line_that_cannot_be_written_does_not_end_it(fake_bundle: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", *fake("slow", fake_bundle)]
    with Path("/dev/full").open("w") as full:
        server = subprocess.Popen(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        while "ready model=" not in (line := server.stderr.readline()):
            assert line, "it ended"
        time.sleep(0.3)
        assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        assert "Traceback" not in server.communicate(timeout=20)[1]
    finally:
        server.kill()
        server.wait()


def test_a_damaged_bundle_ends_it_with_the_reason(fake_bundle: Path, tmp_path: Path) -> None:
    with serving(["-m", "server.cli", "serve", str(tmp_path), "--port", "0"], ROOT, ready=False) as process:
        code, errors = process.end()
    assert code == 4
    assert "is not a bundle" in errors
    assert "Traceback" not in errors


def test_what_the_engine_reports_at_its_first_start_ends_it(fake_bundle: Path, tmp_path: Path) -> None:
    with serving(fake("damaged", fake_bundle), tmp_path, ready=False) as process:
        code, errors = process.end()
    assert code != 0
    assert "BundleDamaged" in errors or "wrong size" in errors


def test_a_taken_port_is_said_at_once(fake_bundle: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ["-m", "server.cli", "serve", str(fake_bundle), "--port", port]
        with serving(arguments, tmp_path, ready=False) as process:
            code, errors = process.end()
    assert code == 2
    assert f"Port {port}" in errors
    assert "in use" in errors
    assert "Traceback" not in errors


def test_json_logs_are_json(fake_bundle: Path, tmp_path: Path) -> None:
    with serving(fake("quick", fake_bundle, "--json-logs"), tmp_path) as process:
        with urllib.request.urlopen(process.post({"prompt": "confidential\n", "max_tokens": 2}), timeout=10):
            pass
        process.popen.send_signal(signal.SIGTERM)
        code, errors = process.end()
    lines = [json.loads(line) for line in errors.splitlines()]
    assert code == 0
    answered = next(line for line in lines if line.get("status") == 200)
    assert answered["message"] == "POST /v1/completions"
    assert len(answered["request_id"]) == 32
    assert answered["completion_tokens"] == 2
    assert "confidential" not in errors


def test_a_folder_with_strange_packages_is_not_imported(fake_bundle: Path, tmp_path: Path) -> None:
    for name in ("server", "models", "ops", "rtcore", "export"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a stranger was imported')\n")
    with serving(fake("quick", fake_bundle), tmp_path) as process:
        with urllib.request.urlopen(process.post({"prompt": "x", "max_tokens": 2}), timeout=10) as response:
            assert response.status == 200
        process.popen.send_signal(signal.SIGTERM)
        assert process.end()[0] == 0
