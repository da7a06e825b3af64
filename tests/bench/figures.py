"""Figures and the table that shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure beside what it is held against, both measured in the same run."""

    name: str
    ours: str
    floor: str
    ratio: float | None
    target: str
    met: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """The figure as a line of the table."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}x"
        verdict = ("met" if self.met else "missed") if self.target else ""
        return (self.name, self.ours, self.floor, ratio, self.target, verdict)


HEADINGS = ("figure", "ours", "floor", "ratio", "target", "verdict")


def table(figures: Iterable[Figure]) -> str:
    """Return the figures as a Markdown table that can also be read as it is."""
    lines = [HEADINGS, *(figure.cells for figure in figures)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    rows = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rows.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(rows)


def milliseconds(seconds: float) -> str:
    """Return a duration for people."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
