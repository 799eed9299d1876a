"""The plot of ``ortolan bench scaling``: an SVG drawn by matplotlib, which the extra `bench` brings."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ops.errors import MissingExtra, ResourceError
from server.bench.sweep import ScalingReport


def require_plot() -> None:
    """Raise MissingExtra unless a plot can be drawn; to be called before minutes of measuring."""
    if find_spec("matplotlib") is None:
        raise MissingExtra(
            "A plot needs matplotlib.",
            remedy="Install the extra: pip install 'ortolan[bench]', or leave --plot out.",
        )


def draw(report: ScalingReport, path: Path) -> None:
    """Write both sweeps side by side to `path` as SVG. Raises ResourceError when it cannot be written."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": report.version, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        throughput, cost = figure.subplots(1, 2)
        throughput.plot(
            [point.sequences for point in report.over_sequences],
            [point.tokens_s for point in report.over_sequences],
            marker="o",
        )
        throughput.set_xscale("log", base=2)
        throughput.set_xticks([point.sequences for point in report.over_sequences])
        throughput.get_xaxis().set_major_formatter("{x:.0f}")
        throughput.set(xlabel="sequences", ylabel="tokens/s", title="throughput")
        contexts = [point.context for point in report.over_context]
        cost.plot(contexts, [point.step_seconds * 1e3 for point in report.over_context], marker="o")
        if report.line is not None:
            line = report.line
            cost.plot(
                contexts,
                [(line.base_seconds + line.slope_seconds * context) * 1e3 for context in contexts],
                linestyle="--",
                color="grey",
                label=f"{line.base_seconds * 1e3:.2f} ms + {line.slope_seconds * 1e9:,.0f} ns a token",
            )
            cost.legend(frameon=False)
        cost.set(xlabel="tokens of context", ylabel="ms", title="step of one sequence")
        for axes in (throughput, cost):
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        figure.suptitle(f"{report.bundle}, {report.precision}, {report.threads} threads of {report.processor}")
        try:
            figure.savefig(path, format="svg", metadata={"Date": None})
        except OSError as error:
            raise ResourceError(f"The plot {path} cannot be written.", why=f"{error.strerror}.") from error
