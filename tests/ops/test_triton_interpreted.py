"""The Triton kernels against their references on the CPU, in a process where Triton interprets them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "triton"
FEWEST = 25


def test_kernels_agree_with_their_references_under_the_interpreter() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "pytest", str(FOLDER), "-p", "no:cacheprovider"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None
    assert int(passed[1]) >= FEWEST
