"""Figure: one measured quantity with its spread and its floor, and how figures are shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """`values` are one for each round, in `unit`; `floor` is what the machine's ceilings allow, in the same unit
    (the highest rate, the shortest time, the least memory), and `floor_because` says how it is reckoned."""

    name: str
    unit: str
    values: tuple[float, ...]
    floor: float
    floor_because: str

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def share(self) -> float:
        """How much of the floor is reached: 1 is as good as the machine allows."""
        return self.median / self.floor if self.unit == "tokens/s" else self.floor / self.median


class FigureRecord(msgspec.Struct, frozen=True):
    """A figure as JSON."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    rounds: int
    floor: float
    share_of_floor: float
    floor_because: str

    @classmethod
    def of(cls, figure: Figure) -> FigureRecord:
        return cls(
            name=figure.name,
            unit=figure.unit,
            median=figure.median,
            low=min(figure.values),
            high=max(figure.values),
            rounds=len(figure.values),
            floor=figure.floor,
            share_of_floor=figure.share,
            floor_because=figure.floor_because,
        )


def table(figures: Sequence[Figure]) -> str:
    """The figures as a table in plain text."""
    rows = [("", "median", "low .. high", "floor", "of floor", "floor is")]
    for figure in figures:
        rows.append(
            (
                figure.name,
                f"{figure.median:,.1f} {figure.unit}",
                f"{min(figure.values):,.1f} .. {max(figure.values):,.1f}",
                f"{figure.floor:,.1f} {figure.unit}",
                f"{figure.share:.0%}",
                figure.floor_because,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:5], widths[1:5], strict=True)]
        lines.append("  ".join([*cells, row[5]]).rstrip())
    return "\n".join(lines)
