"""The Triton kernels against their references on the CPU, in a process where Triton interprets them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "triton"
#: One case of each kernel; the interpreter takes a minute for all.
QUICK = (
    "(greedy and 33) or newest or feed or "
    "layout or (norms and 100) or (gated_activation and silu and 64) or (linear and 64 and True) or "
    "(quant_matmul and (int4.128 or int8.64) and 21) or (gather and int4.128) or "
    "(attention and norms)"
)


def run(*options: str) -> int:
    """The number of cases that passed; none may fail."""
    command = [sys.executable, "-m", "pytest", str(FOLDER), "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    return int(passed[1])


def test_kernels_agree_with_their_references_under_the_interpreter() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    assert run("-k", QUICK) >= 15


@pytest.mark.slow
def test_all_cases_agree_under_the_interpreter() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    assert run() >= 90
