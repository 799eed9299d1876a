"""Memory figures follow what the process does."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from ops.errors import ResourceError
from server.bench import memory


def test_touched_pages_count() -> None:
    before = memory.proportional_bytes()
    with mmap.mmap(-1, 64 * 2**20) as pages:
        np.frombuffer(pages, np.uint8)[:] = 1
        assert memory.proportional_bytes() - before > 60 * 2**20
        assert memory.peak_resident_bytes() >= len(pages)


def test_without_proc_the_error_is_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "PROC", tmp_path)
    with pytest.raises(ResourceError, match="cannot be read"):
        memory.proportional_bytes()
    (tmp_path / "status").write_text("VmRSS:\t5 kB\n")
    with pytest.raises(ResourceError, match="VmHWM"):
        memory.peak_resident_bytes()
