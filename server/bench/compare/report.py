"""What the rounds come to: medians and spread of each entry, and how many times better Ortolan is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from server.bench.compare.entries import Entry
from server.bench.compare.process import Answer
from server.bench.sizes import SEQUENCES, Sizes

_MEBIBYTE = 2.0**20
_RATES = ("prefill", *(f"decode {count}" for count in SEQUENCES))
MEASURES = (*_RATES, "load", "memory")
"""prefill and decode in tokens a second, load in seconds, memory (peak resident) in MiB."""


class Spread(msgspec.Struct, frozen=True):
    median: float
    low: float
    high: float


class EntryResult(msgspec.Struct, frozen=True):
    """One entry. ratios: by measure, how many times better the first of ours is (for time and memory: how many
    times less it takes)."""

    name: str
    engine: str
    precision: str
    ours: bool
    version: str
    missing: str
    error: str
    rounds: int
    figures: dict[str, Spread]
    ratios: dict[str, float]


class Best(msgspec.Struct, frozen=True):
    """For one of ours and one measure: the best peer, and how many times better ours is."""

    ours: str
    measure: str
    among: str
    peer: str
    ratio: float


class CompareReport(msgspec.Struct, frozen=True):
    """The JSON of ``ortolan bench compare --json``."""

    bundle: str
    version: str
    threads: int
    rounds: int
    cache_tokens: int
    sizes: Sizes
    processor: str
    load_average: float
    entries: list[EntryResult]
    best: list[Best]


def results(entries: Sequence[Entry], answers: Sequence[Sequence[Answer]], prefill: int) -> list[EntryResult]:
    """One result an entry, in their order."""
    figures = [_figures([answer for answer in given if answer.version], prefill) for given in answers]
    ours = next((found for entry, found in zip(entries, figures, strict=True) if entry.ours and found), {})
    return [
        EntryResult(
            name=entry.name,
            engine=entry.engine,
            precision=entry.precision,
            ours=entry.ours,
            version=given[0].version,
            missing=given[-1].missing,
            error=given[-1].error,
            rounds=len([answer for answer in given if answer.version]),
            figures=found,
            ratios={
                measure: better(measure, ours[measure], found[measure]) for measure in found if measure in ours
            },
        )
        for entry, given, found in zip(entries, answers, figures, strict=True)
    ]


def _figures(answers: Sequence[Answer], prefill: int) -> dict[str, Spread]:
    if not answers:
        return {}
    samples = {"prefill": [prefill / answer.prefill_seconds for answer in answers]}
    for count in SEQUENCES:
        samples[f"decode {count}"] = [answer.decode_tokens_s[str(count)] for answer in answers]
    samples["load"] = [answer.load_seconds for answer in answers]
    samples["memory"] = [answer.peak_bytes / _MEBIBYTE for answer in answers]
    return {name: Spread(statistics.median(values), min(values), max(values)) for name, values in samples.items()}


def better(measure: str, ours: Spread, other: Spread) -> float:
    """How many times better `ours` is than `other`."""
    return ours.median / other.median if measure in _RATES else other.median / ours.median


def best_peers(found: Sequence[EntryResult]) -> list[Best]:
    """For each of ours and each measure the best of all peers, and the best of those with the same precision."""
    best = []
    for own in found:
        if not own.ours or not own.figures:
            continue
        for measure in MEASURES:
            peers = [peer for peer in found if not peer.ours and peer.figures]
            same = [peer for peer in peers if peer.precision and peer.precision == own.precision]
            for among, group in (("all", peers), (own.precision, same)):
                ranked = [
                    (better(measure, own.figures[measure], peer.figures[measure]), peer.name) for peer in group
                ]
                if ranked:
                    ratio, name = min(ranked)
                    best.append(Best(own.name, measure, among, name, ratio))
    return best


def table(report: CompareReport) -> str:
    """The report in plain text: figures, then the ratios to the best peers."""
    rows = [("", "prefill tok/s", *(f"{count} seq tok/s" for count in SEQUENCES), "load s", "peak MiB")]
    for result in report.entries:
        if result.figures:
            rows.append((result.name, *(_cell(measure, result.figures[measure]) for measure in MEASURES)))
            if result.ratios and not result.ours:
                rows.append(("  ours is better by", *(f"{result.ratios[name]:.2f}x" for name in MEASURES)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    title = f"{report.bundle}, {report.threads} threads of {report.processor}, {report.rounds} rounds"
    lines = [f"{title}: prefill of {report.sizes.prefill}, prompts of {report.sizes.prompt} tokens", ""]
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    for result in report.entries:
        if result.missing or result.error:
            lines.append(
                f"{result.name}: {'missing' if result.missing else 'failed'}: {result.missing or result.error}"
            )
    lines.append("")
    for best in report.best:
        lines.append(f"{best.ours}, {best.measure}: {best.ratio:.2f}x the best of {best.among}, {best.peer}")
    return "\n".join(lines)


def _cell(measure: str, spread: Spread) -> str:
    digits = 2 if measure == "load" else 0 if spread.median >= 100 else 1
    return f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f}-{spread.high:,.{digits}f})"
