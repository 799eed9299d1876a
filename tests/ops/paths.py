"""Runs the operator tests on every path that this machine has: `python -m tests.ops.paths [--need avx512]`.

The tests take the paths from the library, so this says which they are and, with --need, fails where one is missing,
lest a machine be thought to have tested what it does not run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from ops.library import available_kernels


def main() -> int:
    """The exit code of pytest, or 2 where a needed path is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.ops.paths", description="Test the operators on every path."
    )
    parser.add_argument(
        "--need", action="append", default=[], metavar="PATH", help="fail without it; may be repeated"
    )
    arguments, rest = parser.parse_known_args()
    available = available_kernels()
    print(f"This machine runs: {', '.join(available)}")
    missing = [path for path in arguments.need if path not in available]
    if missing:
        print(f"It does not run: {', '.join(missing)}", file=sys.stderr)
        return 2
    return int(pytest.main([str(Path(__file__).parent), *rest]))


if __name__ == "__main__":
    sys.exit(main())
