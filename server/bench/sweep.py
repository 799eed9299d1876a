"""The sweep of ``ortolan bench scaling``: one engine, many numbers of sequences and lengths of context."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np

from ops.errors import ConfigError
from rtcore.bundle import Bundle
from rtcore.config import EngineConfig
from server.bench.machine import processor_name
from server.bench.workload import Workload, load

PROMPT_TOKENS = 128


class Point(msgspec.Struct, frozen=True):
    """Steps of `sequences` sequences with `context` tokens each, in the middle of the measurement."""

    sequences: int
    context: int
    step_seconds: float
    tokens_s: float


class Line(msgspec.Struct, frozen=True):
    """step seconds = base + slope * context, by least squares; deviation: the largest of a point, as a share."""

    base_seconds: float
    slope_seconds: float
    deviation: float


class ScalingReport(msgspec.Struct, frozen=True):
    """The JSON of ``ortolan bench scaling --json``. line: None with fewer than three contexts."""

    bundle: str
    version: str
    precision: str
    threads: int
    processor: str
    steps: int
    over_sequences: list[Point]
    over_context: list[Point]
    line: Line | None


def sweep(
    path: Path, config: EngineConfig, sequences: Sequence[int], contexts: Sequence[int], steps: int
) -> ScalingReport:
    """Measure each number of sequences with prompts of PROMPT_TOKENS, and each context with one sequence.

    Raises ConfigError where no context is left because the engine's own is shorter.
    """
    with Bundle.open(path, check=config.check) as bundle:
        manifest, variant = bundle.manifest, bundle.variant(config.precision, config.target)
    engine, _ = load(path, config)
    with closing(engine):
        longest = engine.context_length - steps - 4
        prompt = min(PROMPT_TOKENS, longest - 2 * max(sequences))
        fitting = [context for context in contexts if context <= longest]
        if not fitting or prompt < 1:
            raise ConfigError(
                f"A context of {engine.context_length} tokens is too short for this sweep.",
                remedy="Ask for shorter --contexts, fewer --sequences or fewer --steps.",
            )
        workload = Workload(engine, seed=0)
        workload.decode_step_seconds(1, prompt, steps)
        over_sequences = [_point(workload, count, prompt, steps) for count in sequences]
        over_context = [_point(workload, 1, context, steps) for context in fitting]
    return ScalingReport(
        bundle=manifest.name,
        version=manifest.version,
        precision=variant.precision,
        threads=config.threads or 0,
        processor=processor_name(),
        steps=steps,
        over_sequences=over_sequences,
        over_context=over_context,
        line=fit(over_context) if len(over_context) >= 3 else None,
    )


def _point(workload: Workload, sequences: int, context: int, steps: int) -> Point:
    seconds = workload.decode_step_seconds(sequences, context, steps)
    return Point(sequences, context + steps // 2, seconds, sequences / seconds)


def fit(points: Sequence[Point]) -> Line:
    """The line through at least two points of different context."""
    contexts = np.array([point.context for point in points], np.float64)
    seconds = np.array([point.step_seconds for point in points])
    slope, base = np.polyfit(contexts, seconds, 1)
    deviation = np.abs(base + slope * contexts - seconds) / seconds
    return Line(float(base), float(slope), float(deviation.max()))


def table(report: ScalingReport) -> str:
    """The report in plain text."""
    lines = [f"{report.bundle}, {report.precision}, {report.threads} threads of {report.processor}", ""]
    lines.append("sequences  context   step ms   tokens/s")
    for point in [*report.over_sequences, *report.over_context]:
        lines.append(
            f"{point.sequences:9,} {point.context:8,} {point.step_seconds * 1e3:9.2f} {point.tokens_s:10,.1f}"
        )
    if report.line is not None:
        base, slope = report.line.base_seconds * 1e3, report.line.slope_seconds * 1e9
        lines.append(
            f"\nOne sequence: {base:.2f} ms + {slope:,.0f} ns a token of context; no point is further than "
            f"{report.line.deviation:.0%} from this line."
        )
    return "\n".join(lines)
