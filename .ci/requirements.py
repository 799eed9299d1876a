"""Prints what pyproject.toml requires, one a line: `serve` stands for the dependencies, other names for extras."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())["project"]
parts = {"serve": project["dependencies"], **project["optional-dependencies"]}
for name in sys.argv[1:]:
    print(*parts[name], sep="\n")
