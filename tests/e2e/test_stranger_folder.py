"""The command works from a folder that itself holds packages called like Ortolan's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import openai
import pytest

from tests.e2e.server_process import ServerProcess, ortolan

STRANGERS = ("server", "models", "ops", "rtcore", "export")


@pytest.fixture
def strange_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "strange"
    for name in STRANGERS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise RuntimeError('the stranger {name} was imported')\n")
    return folder


def ortolan_in(folder: Path, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ortolan(), *arguments], cwd=folder, input=text, capture_output=True, text=True, check=False, timeout=120
    )


def test_generate(strange_folder: Path, tiny_bundle: Path) -> None:
    done = ortolan_in(strange_folder, "generate", str(tiny_bundle), "The quick", "--max-tokens", "3")
    assert done.returncode == 0, done.stderr


def test_chat(strange_folder: Path, tiny_bundle: Path) -> None:
    done = ortolan_in(strange_folder, "chat", str(tiny_bundle), "--max-tokens", "3", text="Hello\n")
    assert done.returncode == 0, done.stderr


def test_verify(strange_folder: Path, tiny_bundle: Path) -> None:
    done = ortolan_in(strange_folder, "verify", str(tiny_bundle))
    assert done.returncode == 0, done.stderr


def test_bench(strange_folder: Path, tiny_bundle: Path) -> None:
    done = ortolan_in(strange_folder, "bench", "run", str(tiny_bundle), "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr


def test_serve(strange_folder: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    with ServerProcess(tiny_bundle, tmp_path / "log", cwd=strange_folder) as server:
        client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0)
        model = client.models.list().data[0].id
        messages = [{"role": "user", "content": "Hello"}]
        reply = client.chat.completions.create(model=model, messages=messages, max_tokens=3, temperature=0)
        assert reply.choices[0].finish_reason in ("stop", "length")
