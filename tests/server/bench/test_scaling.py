"""``ortolan bench scaling`` on a tiny bundle, the line that it fits, and the plot that it draws."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ops.errors import MissingExtra, ResourceError
from server.bench import plot
from server.bench.sweep import Point, ScalingReport, fit
from server.cli import main

SIZES = ["--sequences", "1,3", "--contexts", "8,16,32,4096", "--steps", "2", "--threads", "1"]


def test_json(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scaling", str(tiny_bundle), *SIZES, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [point["sequences"] for point in report["over_sequences"]] == [1, 3]
    # 4096 tokens are more than this model's context.
    assert [point["context"] for point in report["over_context"]] == [9, 17, 33]
    for point in report["over_sequences"] + report["over_context"]:
        assert point["tokens_s"] == pytest.approx(point["sequences"] / point["step_seconds"])
    assert report["line"]["deviation"] >= 0


def test_table(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scaling", str(tiny_bundle), *SIZES]) == 0
    assert "ns a token of context" in capsys.readouterr().out


def test_a_line_is_found() -> None:
    points = [Point(1, context, 0.002 + 1e-6 * context, 1.0) for context in (100, 1000, 4000)]
    line = fit(points)
    assert line.base_seconds == pytest.approx(0.002) and line.slope_seconds == pytest.approx(1e-6)
    assert line.deviation < 1e-9
    assert fit([*points, Point(1, 2000, 0.008, 1.0)]).deviation > 0.1


def test_plot_is_svg(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = [Point(count, 100 * count, 0.01 * count, 100.0) for count in (1, 2, 4)]
    report = ScalingReport("m", "1", "int8", 2, "a processor", 2, points, points, fit(points))
    plot.draw(report, tmp_path / "plot.svg")
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")
    with pytest.raises(ResourceError, match="cannot be written"):
        plot.draw(report, tmp_path / "absent" / "plot.svg")


def test_without_matplotlib_nothing_is_measured(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="matplotlib"):
        plot.require_plot()
    assert main(["bench", "scaling", str(tiny_bundle), "--plot", "x.svg"]) != 0
    assert "ortolan[bench]" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--contexts", "4096"], ["--sequences", "1,400"]])
def test_sweeps_that_cannot_be_are_refused(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["bench", "scaling", str(tiny_bundle), *arguments]) != 0
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err and "Traceback" not in shown.err
