"""``ortolan bench profile`` on a tiny bundle: stages and operators add up to the step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.bench import ceilings
from server.bench.profiling import case
from server.bench.profiling.stages import STAGES
from server.cli import main
from tests.server.bench.test_floors import CEILINGS


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "measure_apart", lambda threads: CEILINGS)
    assert ceilings.measure_apart is not case.measure_apart


def profile(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["bench", "profile", *arguments, "--json"]) == 0
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    return report


def test_decode(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--precision", "int8", "--sequences", "3", "--context", "20", "--steps", "4", "--threads", "1"]
    report = profile(capsys, str(tiny_bundle), *arguments)
    assert report["size"] == {"sequences": 3, "queries": 1, "context": 20} and report["steps"] == 4
    assert tuple(report["stages"]) == STAGES  # type: ignore[arg-type]
    assert all(seconds > 0 for seconds in report["stages"].values())  # type: ignore[attr-defined]
    layers = json.loads((tiny_bundle / "manifest.json").read_text())["dimensions"]["layers"]
    assert report["between_seconds"] > 0  # type: ignore[operator]
    calls: dict[str, float] = {}
    for cost in report["operators"]:  # type: ignore[attr-defined]
        calls[cost["operator"]] = calls.get(cost["operator"], 0) + cost["calls"]
        assert cost["seconds"] >= 0 and cost["floor_seconds"] > 0
    assert calls["PagedAttention"] == layers and calls["QuantMatMul"] == 4 * layers + 1


def test_prefill_and_table(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = profile(capsys, str(tiny_bundle), "--precision", "fp32", "--prefill", "33", "--steps", "2")
    assert report["size"] == {"sequences": 1, "queries": 33, "context": 33} and report["steps"] == 2
    assert main(["bench", "profile", str(tiny_bundle), "--prefill", "33", "--steps", "2"]) == 0
    shown = capsys.readouterr().out
    assert "prefill of 33 tokens" in shown
    assert all(f"\n{name}" in shown for name in ("host: schedule", "graph: between", "PagedAttention", "step"))


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--context", "9999"], ["--prefill", "600"]])
def test_sizes_that_cannot_be_are_refused(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["bench", "profile", str(tiny_bundle), *arguments]) != 0
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err and "Traceback" not in shown.err
