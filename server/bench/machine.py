"""What this machine calls its processor."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def processor_name() -> str:
    """The model name that Linux gives (proc(5)), or the architecture where it gives none."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [
        value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == "model name"
    ]
    return names[0] if names else platform.machine()
