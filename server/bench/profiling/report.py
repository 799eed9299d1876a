"""A profile as a table in plain text."""

from __future__ import annotations

from server.bench.profiling.case import ProfileReport

_MICROS = 1e6
_HEADER = ("", "calls", "us", "share", "MB", "Mop", "floor us", "x floor")


def table(report: ProfileReport) -> str:
    """Host stages and operators, each with its share of the step; operators with their floors."""
    size = report.size
    what = (
        f"prefill of {size.queries} tokens"
        if size.queries > 1
        else f"decode, {size.sequences} sequences of {size.context} tokens"
    )
    rows = [_HEADER]
    for stage, seconds in report.stages.items():
        if stage != "run":
            rows.append(_row(f"host: {stage}", seconds, report))
    rows.append(_row("graph: between operators", report.between_seconds, report))
    for cost in report.operators:
        figures = (
            f"{cost.bytes / 1e6:,.2f}",
            f"{cost.operations / 1e6:,.1f}",
            f"{cost.floor_seconds * _MICROS:,.1f}",
            f"{cost.gap:,.1f}",
        )
        name = f"{cost.operator} {cost.shape}"
        rows.append(_row(name, cost.seconds, report, f"{cost.calls:g}", figures))
    floor = sum(cost.floor_seconds for cost in report.operators)
    figures = (
        f"{sum(cost.bytes for cost in report.operators) / 1e6:,.2f}",
        f"{sum(cost.operations for cost in report.operators) / 1e6:,.1f}",
        f"{floor * _MICROS:,.1f}",
        f"{sum(_parts(report)) / floor:,.1f}" if floor else "",
    )
    rows.append(_row("step", sum(_parts(report)), report, "", figures))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = [
        f"{report.bundle}, {report.precision}, {report.threads} threads: {what}, mean of {report.steps} steps",
        "",
    ]
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    ceilings = report.ceilings
    reads, fp32, int8 = (value / 1e9 for value in (ceilings.read_bytes_s, ceilings.fp32_ops_s, ceilings.int8_ops_s))
    lines.append(
        f"\nThis machine: reads {reads:.1f} GB/s, fp32 {fp32:.0f} GFLOP/s, int8 {int8:.0f} GOP/s. "
        f"A step took {report.step_seconds * _MICROS:,.0f} us, and "
        f"{report.profiled_seconds * _MICROS:,.0f} us while operators were timed."
    )
    return "\n".join(lines)


def _row(
    name: str,
    seconds: float,
    report: ProfileReport,
    calls: str = "",
    figures: tuple[str, str, str, str] = ("", "", "", ""),
) -> tuple[str, str, str, str, str, str, str, str]:
    return (name, calls, f"{seconds * _MICROS:,.1f}", f"{seconds / sum(_parts(report)):.1%}", *figures)


def _parts(report: ProfileReport) -> list[float]:
    """What the rows above the last one add up to: the host's stages but `run`, and the graph as it was profiled."""
    host = [seconds for stage, seconds in report.stages.items() if stage != "run"]
    return [*host, report.between_seconds, *(cost.seconds for cost in report.operators)]
