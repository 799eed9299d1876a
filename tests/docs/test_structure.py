"""docs/structure.md lists every module, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("export", "models", "ops", "rtcore", "server")
LINE = re.compile(r"^- `([^`]+)`: \S.*\.$")


def modules() -> set[str]:
    """Python modules that hold code, and the native library's units: a header stands for its .cc too."""
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            native = path.suffix == ".h" or (path.suffix == ".cc" and not path.with_suffix(".h").exists())
            if native or (path.suffix == ".py" and path.read_text().strip()):
                found.add(path.relative_to(ROOT).as_posix())
    return {name for name in found if "__pycache__" not in name}


def listed() -> list[str]:
    lines = (ROOT / "docs" / "structure.md").read_text().splitlines()
    entries = [line for line in lines if line.startswith("- ")]
    matches = [LINE.match(line) for line in entries]
    wrong = [line for line, match in zip(entries, matches, strict=True) if match is None]
    assert wrong == [], "each line is: - `path`: what it holds."
    return [match.group(1) for match in matches if match is not None]


def test_every_module_is_listed_once() -> None:
    names = listed()
    assert len(names) == len(set(names))
    assert sorted(modules() - set(names)) == []
    assert sorted(set(names) - modules()) == []
