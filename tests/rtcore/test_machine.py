"""Cores and memory by the files of a control group."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from ops.errors import ResourceError
from rtcore.machine import allow_open_files, available_cores, available_memory

GIB = 1 << 30


@pytest.fixture
def system(tmp_path: Path) -> tuple[Path, Path]:
    """A control group /app/engine inside /app, and the kernel's files about it."""
    cgroup, proc = tmp_path / "cgroup", tmp_path / "proc"
    (cgroup / "app/engine").mkdir(parents=True)
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/app/engine\n")
    (proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:  {8 * GIB // 1024} kB\n")
    return cgroup, proc


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("own", "parent", "expected"),
    [
        ("max 100000", "max 100000", 8),
        ("250000 100000", "max 100000", 3),
        ("max 100000", "150000 100000", 2),
        ("50000 100000", "800000 100000", 1),
        ("garbage", "", 8),
        ("100 0", "", 8),
    ],
)
def test_cores(system: tuple[Path, Path], own: str, parent: str, expected: int) -> None:
    cgroup, proc = system
    (cgroup / "app/engine/cpu.max").write_text(own)
    (cgroup / "app/cpu.max").write_text(parent)
    assert available_cores(cgroup, proc) == expected


def test_affinity_bounds_the_cores(system: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert available_cores(*system) == 1


def test_memory_of_the_machine(system: tuple[Path, Path]) -> None:
    assert available_memory(*system) == 8 * GIB


def test_memory_of_the_tightest_group_with_its_page_cache(system: tuple[Path, Path]) -> None:
    cgroup, proc = system
    (cgroup / "app/memory.max").write_text(str(6 * GIB))
    (cgroup / "app/memory.current").write_text(str(5 * GIB))
    (cgroup / "app/memory.stat").write_text(f"anon 7\nactive_file {GIB}\ninactive_file {GIB}\n")
    (cgroup / "app/engine/memory.max").write_text("max")
    (cgroup / "app/engine/memory.current").write_text(str(4 * GIB))
    assert available_memory(cgroup, proc) == 3 * GIB


def test_nothing_known(tmp_path: Path) -> None:
    assert available_memory(tmp_path, tmp_path) is None
    assert available_cores(tmp_path, tmp_path) == 8


def test_this_machine() -> None:
    assert (available_memory() or GIB) > 1 << 20
    assert available_cores() >= 1


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, 65536),
        (1 << 20, 1 << 20, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
        (64, 64, None),
    ],
)
def test_open_files(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int | None) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(limits))
    allow_open_files()
    assert asked == ([] if expected is None else [(expected, hard)])


def test_too_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (20, 20))
    with pytest.raises(ResourceError, match="may open 20 files"):
        allow_open_files()
