"""One sample a minute of what operators look at, kept for a day, for the admin's charts.

Any number of processes may take samples: the first one writes the minute, the others write nothing.
A sample has the gauges of :data:`GAUGES` as they are when it is taken, just after the minute's end,
and what apps counted of that minute. Database time only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from controlplane.metrics.gauges import Gauge, measured
from controlplane.metrics.models import MinuteSample

KEPT = timedelta(hours=25)
"""How long samples are kept: the charts show a day."""

MINUTE = timedelta(minutes=1)

GAUGES = (
    "svc_build_queue_oldest_seconds",
    "svc_build_slots",
    "svc_build_slots_in_use",
    "svc_run_slots",
    "svc_run_slots_in_use",
)
"""The gauges of ``GET /metrics`` that are kept; those with labels as sums by the first one."""

counted: dict[str, Callable[[datetime, datetime], Any]] = {}
"""What apps count of a minute, by the name of the value; see :func:`register`."""


def register(name: str, count: Callable[[datetime, datetime], Any]) -> None:
    """Add a value to each sample; ``count`` takes the minute's begin and end, and returns JSON."""
    counted[name] = count


def last_minute() -> datetime:
    """Return when the last whole minute began."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT date_trunc('minute', statement_timestamp()) - interval '1 minute'")
        (minute,) = cursor.fetchone()
    assert isinstance(minute, datetime)
    return minute


def take(minute: datetime, *, stale: timedelta) -> bool:
    """Sample ``minute`` and drop what is too old; False when it was sampled already.

    ``stale`` is how long a worker may be silent before it counts as dead.
    """
    if MinuteSample.objects.filter(minute=minute, source="").exists():
        return False
    values: dict[str, Any] = {}
    for measure in measured.values():
        for gauge in measure(stale=stale):
            if gauge.name in GAUGES:
                values[gauge.name] = _by_first_label(gauge) if gauge.labels else gauge.values[()]
    for name, count in counted.items():
        values[name] = count(minute, minute + MINUTE)
    store(minute, "", values)
    MinuteSample.objects.filter(minute__lt=minute - KEPT).delete()
    return True


def _by_first_label(gauge: Gauge) -> dict[str, float]:
    sums: dict[str, float] = {}
    for labels, value in gauge.values.items():
        sums[labels[0]] = sums.get(labels[0], 0) + value
    return sums


def store(minute: datetime, source: str, values: Mapping[str, Any]) -> None:
    """Keep a sample of ``source``; of two for the same minute the first one stays."""
    MinuteSample.objects.bulk_create(
        [MinuteSample(minute=minute, source=source, values=_plain(values))], ignore_conflicts=True
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with floats in place of the database's decimals."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            plain[name] = _plain(value)
        elif isinstance(value, list):
            plain[name] = [float(each) for each in value]
        else:
            plain[name] = float(value)
    return plain
