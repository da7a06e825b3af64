"""``docs/developers/figures.md``: its tables, what they said before, and what became worse."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.bench.figures import Figure

BEGIN = "<!-- figures: {} -->"
END = "<!-- end of figures -->"
MACHINE = "machine"
"""The name between the markers of the line that says where the figures are from."""
WORSE = 0.15
"""How much worse a figure has to be to be named; less is noise on machines that others use too."""
HEADINGS = ("Figure", "Ours", "Floor", "Ratio", "Spread", "Target", "")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "k/s": 1e3}


@dataclass(frozen=True)
class Section:
    """The runs of one group: each has its figures, by and large the same ones."""

    runs: Sequence[Sequence[Figure]]

    @cached_property
    def figures(self) -> list[tuple[Figure, str]]:
        """The middle run of each figure, of two middle ones the worse, and the spread of all.

        The spread is the lowest and the highest, and empty where it ran once.
        """
        by_name: dict[tuple[str, int], list[Figure]] = {}
        for run in self.runs:
            # Some stand twice in a run: “the same, p99” is about the figure above it.
            seen = Counter[str]()
            for figure in run:
                by_name.setdefault((figure.name, seen[figure.name]), []).append(figure)
                seen[figure.name] += 1
        return [_middle(figures) for figures in by_name.values()]

    def table(self) -> str:
        """Return the figures as a Markdown table."""
        lines = [
            HEADINGS,
            *(_cells(figure, spread) for figure, spread in self.figures),
        ]
        rows = ["| " + " | ".join(cell for cell in line) + " |" for line in lines]
        rows.insert(1, "|" + "---|" * len(HEADINGS))
        return re.sub(r" +\|", " |", "\n".join(rows))


def _cells(figure: Figure, spread: str) -> tuple[str, ...]:
    name, ours, floor, ratio, target, verdict = figure.cells
    return (name, ours, floor, ratio, spread, target, verdict)


def _middle(figures: Sequence[Figure]) -> tuple[Figure, str]:
    ordered = sorted(figures, key=lambda figure: value_of(figure) or 0.0)
    low, high = ordered[0], ordered[-1]
    spread = ""
    if len(ordered) > 1:
        shown = [
            f"{figure.ratio:.2f}x" if figure.ratio is not None else figure.ours
            for figure in (low, high)
        ]
        spread = f"{shown[0]} to {shown[1]}, {len(ordered)} runs"
    # Of two in the middle, the worse: the better one would be the best of two runs.
    middle = len(ordered) // 2 if _less_is_better(low) else (len(ordered) - 1) // 2
    return ordered[middle], spread


def value_of(figure: Figure) -> float | None:
    """Return what is compared of a figure: its ratio, else the first number of ours with its unit.

    None where there is neither.
    """
    if figure.ratio is not None:
        return figure.ratio
    found = re.match(r"(\d+(?:\.\d+)?)\s*(\S*)", figure.ours.replace(",", ""))
    return float(found[1]) * _UNITS.get(found[2].rstrip(",;"), 1.0) if found else None


def read_page(text: str) -> dict[str, list[Figure]]:
    """Return the figures of each section of the page, in order."""
    found: dict[str, list[Figure]] = {}
    for name, block in _blocks(text):
        found[name] = [figure for line in block.splitlines() if (figure := _figure_of(line))]
    return found


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    pattern = re.escape(BEGIN).replace(re.escape("{}"), r"(\S+)")
    for block in re.finditer(f"{pattern}\n(.*?){re.escape(END)}", text, re.DOTALL):
        yield block[1], block[2]


def _figure_of(line: str) -> Figure | None:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if len(cells) != len(HEADINGS) or cells[0] == HEADINGS[0] or set(cells[0]) <= {"-"}:
        return None
    name, ours, floor, ratio, _, target, verdict = cells
    number = _NUMBER.search(ratio)
    return Figure(name, ours, floor, float(number[0]) if number else None, target, verdict == "met")


def replaced(text: str, sections: Mapping[str, Section], machine: str) -> str:
    """Return the page with new tables; sections that were not measured stay as they are.

    Raises ``ValueError`` for a section without a place on the page.
    """
    new = {name: section.table() for name, section in sections.items()} | {MACHINE: machine}
    for name, content in new.items():
        begin = BEGIN.format(name)
        head, found, rest = text.partition(f"{begin}\n")
        _, ended, tail = rest.partition(END)
        if not found or not ended:
            raise ValueError(f"The page has no place for the figures of {name}.")
        text = f"{head}{begin}\n{content}\n{END}{tail}"
    return text


def compared(
    before: Mapping[str, Sequence[Figure]], sections: Mapping[str, Section]
) -> Iterator[str]:
    """Yield a line for each figure that is more than 15 % worse than it was.

    Only figures with a target are compared: it says whether more or less is better.
    """
    for name, section in sections.items():
        earlier = _by_key(before.get(name, ()))
        now = _by_key([figure for figure, _ in section.figures])
        for key, figure in now.items():
            old = earlier.get(key)
            was, is_now = (value_of(old) if old else None), value_of(figure)
            if old is None or not was or not is_now or not figure.target:
                continue
            if (old.ratio is None) != (figure.ratio is None):
                continue
            change = is_now / was if _less_is_better(figure) else was / is_now
            if change > 1 + WORSE:
                shown = [
                    f"{each.ratio:.2f}x" if each.ratio else each.ours for each in (old, figure)
                ]
                yield f"{figure.name.strip()}: {shown[0]} before, {shown[1]} now"


def _by_key(figures: Sequence[Figure]) -> dict[str, Figure]:
    """Index figures by name; a name that is there twice gets a number, by its place."""
    found: dict[str, Figure] = {}
    for figure in figures:
        key, number = _key(figure.name), 2
        while key in found:
            key, number = f"{_key(figure.name)} {number}", number + 1
        found[key] = figure
    return found


def _key(name: str) -> str:
    """Return a name without its numbers, which tell how much was measured."""
    return _NUMBER.sub("#", name).strip()


def _less_is_better(figure: Figure) -> bool:
    """Return what the target says; without one, only what is told by the second should be more."""
    if figure.target:
        return figure.target.startswith(("<", "≤"))
    return "/s" not in figure.ours


def machine() -> str:
    """Return a sentence about this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    load = os.getloadavg()[0]
    return (
        f"Measured on {os.cpu_count()} cores ({model}), {memory:.0f} GiB of memory,"
        f" Linux {platform.release()}, Python {platform.python_version()}."
        f" Load average at the end: {load:.1f}."
    )
