"""What this machine lets the process use: cores and memory, limits of its control group included."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

from ops.errors import ResourceError

_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_FEWEST_FILES = 64
_ENOUGH_FILES = 1 << 16


def available_cores(cgroup: Path = _CGROUP, proc: Path = _PROC) -> int:
    """Cores by affinity, and by the CPU quota of the control group (version 2) where it is less; at least 1."""
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    for folder in _own_groups(cgroup, proc):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def available_memory(cgroup: Path = _CGROUP, proc: Path = _PROC) -> int | None:
    """Bytes that can be used without swapping: of the machine, and of the control groups (version 2) where
    that is less. Page cache counts as free. None where it cannot be told."""
    found = [
        int(line.split()[1]) * 1024
        for line in _read(proc / "meminfo").splitlines()
        if line.startswith("MemAvailable:")
    ]
    for folder in _own_groups(cgroup, proc):
        limit, used = _read(folder / "memory.max"), _read(folder / "memory.current")
        if limit.isdigit() and used.isdigit():
            reclaimable = sum(
                int(line.split()[1])
                for line in _read(folder / "memory.stat").splitlines()
                if line.startswith(("inactive_file ", "active_file "))
            )
            found.append(max(0, int(limit) - int(used) + reclaimable))
    return min(found) if found else None


def allow_open_files() -> None:
    """Raise this process's limit of open files as far as it may go. Raises ResourceError where that is too low.

    A connection takes one, and libraries end the process without a word where there are none left.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > _ENOUGH_FILES:
        hard = max(soft, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        soft = hard
    if soft != resource.RLIM_INFINITY and soft < _FEWEST_FILES:
        raise ResourceError(
            f"This process may open {soft} files.",
            why=f"A server needs {_FEWEST_FILES} at least, and one for each connection.",
            remedy="Raise the limit: ulimit -n 4096",
        )


def _own_groups(cgroup: Path, proc: Path) -> list[Path]:
    """The folders of this process's control group and its parents; each of them may set a limit."""
    own = next((line[3:] for line in _read(proc / "self/cgroup").splitlines() if line.startswith("0::")), "/")
    folder = cgroup / own.strip().lstrip("/")
    if not folder.is_dir():
        folder = cgroup
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(cgroup))]


def _read(path: Path) -> str:
    """The text of a file of the kernel, empty where it does not exist."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
