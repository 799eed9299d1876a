"""The base of all drivers, run as it runs in an engine's environment, with an engine that is a fake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.bench.compare.registry import BASE, DRIVERS, ENGINES, driver
from tests.server.bench.compare.fake_engine import write_fake_engine

REQUEST: dict[str, Any] = {
    "model": "a model",
    "threads": 1,
    "options": {},
    "cache_tokens": 100,
    "sequences": 2,
    "warm_up": [1],
    "prefill": [1, 2, 3],
    "decode": {"1": [[1]], "2": [[1], [2]]},
    "new_tokens": {"1": 9, "2": 5},
}


def ask(driver: Path, **options: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BASE), str(driver)],
        input=json.dumps({**REQUEST, "options": options}),
        env={"PYTHONPATH": str(driver.parent / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("\n") == 1
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_figures(tmp_path: Path) -> None:
    answer = ask(write_fake_engine(tmp_path))
    assert answer["prefill_seconds"] == 0.5
    assert answer["decode_tokens_s"] == {"1": 4.0, "2": 4.0}
    assert answer["ids"] == {"1": [7] * 9, "2": [7] * 5}
    assert answer["version"] == "9" and answer["load_seconds"] >= 0
    assert answer["peak_bytes"] > 2**20


def test_an_engine_that_is_not_installed_is_missing(tmp_path: Path) -> None:
    answer = ask(write_fake_engine(tmp_path, installed=False))
    assert "an_engine" in answer.pop("missing") and answer == {}


def test_an_engine_that_fails_says_how(tmp_path: Path) -> None:
    driver = write_fake_engine(tmp_path)
    assert "out of luck" in ask(driver, fails="out of luck")["error"]
    assert "asked for 9 tokens each, got [8]" in ask(driver, short=1)["error"]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_driver_that_needs_nothing_of_ours(engine: str) -> None:
    """Loading it needs the standard library alone: without its package an engine counts as missing."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(BASE), str(driver(engine))],
        input=json.dumps(REQUEST),
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(json.loads(done.stdout)) == ["missing"]


def test_no_driver_is_forgotten() -> None:
    assert {file.stem for file in DRIVERS.glob("*.py")} - {"__init__", "base"} == set(ENGINES)
