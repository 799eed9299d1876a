"""The name of the processor."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from server.bench import machine


def test_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert machine.processor_name() == platform.machine()
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A: fast one\n\nmodel name\t: another\n")
    assert machine.processor_name() == "A: fast one"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\n")
    assert machine.processor_name() == platform.machine()
