"""Faults caused to the real command and the real server: said in words, and the server lives on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import psutil
import pytest

from tests.e2e.server_process import ServerProcess, ortolan

LONG = 400


def largest_file(bundle: Path) -> Path:
    return max((path for path in bundle.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def truncate(bundle: Path) -> None:
    file = largest_file(bundle)
    os.truncate(file, file.stat().st_size - 1)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def make_newer(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["format"] += 1
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def leave_the_bundle(bundle: Path) -> None:
    content = (bundle / "manifest.json").read_text().replace("tokenizer/tokenizer.json", "../../etc/tokenizer.json")
    (bundle / "manifest.json").write_text(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated weights": truncate,
    "flipped bit of the weights": lambda bundle: flip(largest_file(bundle)),
    "flipped bit of the tokenizer": lambda bundle: flip(bundle / "tokenizer" / "tokenizer.json"),
    "flipped bit of the manifest": lambda bundle: flip(bundle / "manifest.json"),
    "missing weights": lambda bundle: largest_file(bundle).unlink(),
    "missing manifest": lambda bundle: (bundle / "manifest.json").unlink(),
    "newer format": make_newer,
    "file name that leaves the bundle": leave_the_bundle,
    "nothing at all": shutil.rmtree,
}


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.mark.parametrize(
    ("command", "damage"),
    [
        *(("generate", damage) for damage in DAMAGES),
        *(("serve", damage) for damage in ("flipped bit of the weights", "missing weights", "newer format")),
    ],
)
def test_a_damaged_bundle_is_refused_in_words(copy: Path, damage: str, command: str) -> None:
    DAMAGES[damage](copy)
    arguments = ["--port", "0"] if command == "serve" else ["The quick"]
    done = subprocess.run(
        [*ortolan(), command, str(copy), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode not in (0, -signal.SIGKILL)
    assert "bundle" in done.stderr and "Traceback" not in done.stdout + done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--precision", "int3"], "int3"),
        (["--cache-bytes", "1KiB"], "cache"),
        (["--host", "0.0.0.0"], "--insecure"),
    ],
)
def test_a_server_that_cannot_be_is_refused_in_words(tiny_bundle: Path, arguments: list[str], said: str) -> None:
    command = [*ortolan(), "serve", str(tiny_bundle), "--port", "0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode not in (0, -signal.SIGKILL)
    assert said in done.stderr and "Traceback" not in done.stdout + done.stderr


@pytest.fixture(scope="module")
def server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tiny_bundle, tmp_path_factory.mktemp("server") / "log", "--precision", "fp32") as running:
        yield running


def complete(server: ServerProcess, **fields: object) -> tuple[int, str]:
    return server.post("/v1/completions", {"prompt": "The quick", "max_tokens": 4, "temperature": 0, **fields})


def text_of(server: ServerProcess) -> str:
    status, answer = complete(server)
    assert status == 200
    return str(json.loads(answer)["choices"][0]["text"])


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"prompt": "word " * 2000}, 400, "prompt"),
        ({"prompt": [5] * 500, "max_tokens": 100}, 400, "max_tokens"),
        ({"prompt": [10**6]}, 400, "prompt"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"model": "another"}, 404, "model"),
    ],
)
def test_a_bad_request_names_its_field(
    server: ServerProcess, fields: dict[str, object], status: int, param: str
) -> None:
    before = text_of(server)
    found, answer = complete(server, **fields)
    assert found == status, answer
    error = json.loads(answer)["error"]
    assert error["param"] == param and error["message"] and "Traceback" not in answer
    assert text_of(server) == before


def engine_of(server: ServerProcess) -> psutil.Process:
    (engine,) = psutil.Process(server.process.pid).children(recursive=True)
    return engine


def test_an_engine_killed_while_streaming_comes_back(server: ServerProcess) -> None:
    before = text_of(server)
    client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    killed = engine_of(server)
    stream = client.completions.create(
        model=model,
        prompt="The quick",
        max_tokens=LONG,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    with pytest.raises(openai.APIError) as caught:
        for number, _ in enumerate(stream):
            if number == 3:
                killed.send_signal(signal.SIGKILL)
    assert "Traceback" not in str(caught.value)
    start = time.monotonic()
    while not server.ready():
        assert time.monotonic() - start < 30 and server.process.poll() is None
        time.sleep(0.05)
    assert engine_of(server).pid != killed.pid
    assert text_of(server) == before
    assert "Traceback" not in server.log.read_text()
