"""A package that stands for an engine, and a driver for it: what they do is said by the request's options."""

from __future__ import annotations

from pathlib import Path

DRIVER = """
PACKAGE = "an_engine"


class Driver:
    version = "9"

    def __init__(self, package, request):
        package.note("loading", request["model"])
        self.options = request["options"]
        if self.options.get("fails"):
            raise RuntimeError(self.options["fails"])

    def generate(self, prompts, new_tokens):
        if self.options.get("dies"):
            import os
            os._exit(3)
        if self.options.get("hangs"):
            import time
            time.sleep(60)
        count = new_tokens - self.options.get("short", 0)
        first = self.options.get("first", 0.5)
        return [[7] * count for _ in prompts], first, first + 2.0, len(prompts) * (new_tokens - 1)
"""

PACKAGE = """
def note(*values):
    print(*values)
"""


def write_fake_engine(folder: Path, *, installed: bool = True) -> Path:
    """Write the driver, and the package beside where PYTHONPATH points; returns the driver."""
    if installed:
        (folder / "site").mkdir()
        (folder / "site" / "an_engine.py").write_text(PACKAGE)
    driver = folder / "fake.py"
    driver.write_text(DRIVER)
    return driver
