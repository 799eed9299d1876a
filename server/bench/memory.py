"""Memory of this process as Linux counts it (proc(5)): proportional and resident."""

from __future__ import annotations

from pathlib import Path

from ops.errors import ResourceError

PROC = Path("/proc/self")


def _kibibytes(file: str, key: str) -> int:
    try:
        lines = (PROC / file).read_text().splitlines()
    except OSError as error:
        raise ResourceError(
            "The memory of this process cannot be read.",
            why=str(error),
            remedy="Memory is measured on Linux with /proc mounted.",
        ) from error
    for line in lines:
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise ResourceError(f"{PROC / file} has no line {key}.")


def proportional_bytes() -> int:
    """PSS now: private pages, and shared ones divided by the number of processes that share them."""
    return _kibibytes("smaps_rollup", "Pss")


def peak_resident_bytes() -> int:
    """The largest resident set that this process has had."""
    return _kibibytes("status", "VmHWM")
