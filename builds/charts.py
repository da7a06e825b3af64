"""The charts of the admin's start page: the last day in steps of ten minutes.

Each chart is drawn from the samples of each minute (``controlplane.metrics.samples``). A step
without a sample has no point, so that a time without workers is seen as a gap, not as zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models.functions import Now

from controlplane.metrics.models import MinuteSample

DAY = timedelta(hours=24)
STEP_SECONDS = 600
CODES_SHOWN = 5
"""How many codes of failures have a line of their own, the most frequent ones."""

Values = Mapping[str, Any]
Points = list[float | None]
Point = Callable[[int], float | None]
"""The value of a step; None: a gap."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: ``series`` are pairs of a label and its points, one for each of ``times``."""

    name: str
    title: str
    unit: str
    """``number``, ``seconds`` or ``share``."""
    times: list[int]
    """When each step began, in seconds since 1970."""
    series: list[tuple[str, Points]]


def charts() -> list[dict[str, Any]]:
    """Return the charts of the last day, ready to be written as JSON; none without samples."""
    rows = list(
        MinuteSample.objects.filter(minute__gt=Now() - DAY)
        .order_by("minute")
        .values_list("minute", "source", "values")
    )
    if not rows:
        return []
    whole = _Steps((minute, values) for minute, source, values in rows if not source)
    machines = {
        engine: _Steps((minute, values) for minute, source, values in rows if source == engine)
        for engine in sorted({source for _, source, _ in rows if source})
    }
    first, last = (int(row[0].timestamp()) // STEP_SECONDS for row in (rows[0], rows[-1]))
    steps = range(first, last + 1)
    queue_age = {"oldest": whole.highest("svc_build_queue_oldest_seconds")}
    start_time = {f"p{percent}": whole.percentile("start_seconds", percent) for percent in (50, 95)}
    memory, processor = (
        {engine[:12]: machine.highest(name) for engine, machine in machines.items()}
        for name in ("memory", "cpu")
    )
    lanes = whole.highest_by_label("svc_build_slots_in_use")
    slots = whole.highest_by_label("svc_run_slots_in_use")
    drawn = [
        ("starts", "Starts", "number", {"starts": whole.number_of("start_seconds")}),
        ("start-time", "Time from request to ready", "seconds", start_time),
        ("failures", "Failed attempts", "number", whole.failures()),
        ("queue-age", "Age of the oldest queued job", "seconds", queue_age),
        ("lanes", "Slots of the build workers in use, by lane", "number", lanes),
        ("slots", "Slots of the run workers in use", "number", slots),
        ("memory", "Memory in use, by engine", "share", memory),
        ("cpu", "Processor time in use, by engine", "share", processor),
    ]
    return [
        asdict(
            Chart(
                *(name, title, unit, [step * STEP_SECONDS for step in steps]),
                [(label, [point(step) for step in steps]) for label, point in series.items()],
            )
        )
        for name, title, unit, series in drawn
        if series
    ]


class _Steps:
    """The samples of one source by step."""

    def __init__(self, samples: Iterable[tuple[datetime, Values]]) -> None:
        self._samples: dict[int, list[Values]] = {}
        for minute, values in samples:
            step = int(minute.timestamp()) // STEP_SECONDS
            self._samples.setdefault(step, []).append(values)

    def _lists(self, name: str, step: int) -> list[float] | None:
        samples = self._samples.get(step)
        if samples is None:
            return None
        return [each for values in samples for each in values.get(name, ())]

    def number_of(self, name: str) -> Point:
        """Return how long the lists of a step are together."""

        def point(step: int) -> float | None:
            found = self._lists(name, step)
            return None if found is None else len(found)

        return point

    def percentile(self, name: str, percent: int) -> Point:
        """Return the percentile of all lists of a step; None of nothing (nearest rank)."""

        def point(step: int) -> float | None:
            found: list[float] = sorted(self._lists(name, step) or ())
            return found[-(-len(found) * percent // 100) - 1] if found else None

        return point

    def highest(self, name: str, label: str | None = None) -> Point:
        """Return the highest value of a step, of values by label that of ``label``."""

        def point(step: int) -> float | None:
            values: list[Any] = [
                sample[name] for sample in self._samples.get(step, ()) if name in sample
            ]
            if label is not None:
                values = [each[label] for each in values if label in each]
            highest: float | None = max(values, default=None)
            return highest

        return point

    def highest_by_label(self, name: str) -> dict[str, Point]:
        """Return the highest values of a step for each label that any sample has."""
        samples = [sample.get(name, {}) for found in self._samples.values() for sample in found]
        labels = sorted({label for sample in samples for label in sample})
        return {label: self.highest(name, label) for label in labels}

    def failures(self) -> dict[str, Point]:
        """Return how many attempts failed in a step for the most frequent codes, and all others."""
        total: Counter[str] = Counter()
        for found in self._samples.values():
            for sample in found:
                total.update(sample.get("failures", {}))
        shown = [code for code, _ in total.most_common(CODES_SHOWN)]
        points = {code: self._failed([code]) for code in shown}
        if others := [code for code in total if code not in shown]:
            points["others"] = self._failed(others)
        return points or {"failures": self._failed([])}

    def _failed(self, codes: Sequence[str]) -> Point:
        def point(step: int) -> float | None:
            samples = self._samples.get(step)
            if samples is None:
                return None
            failed: list[float] = [
                sample.get("failures", {}).get(code, 0) for sample in samples for code in codes
            ]
            return sum(failed)

        return point
