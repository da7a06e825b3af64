"""The page of metrics: what can be had is in it, and what cannot is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TypeVar

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction

from controlplane.metrics import counting, services
from controlplane.metrics.counting import Key
from controlplane.metrics.exposition import exposition
from controlplane.metrics.gauges import Gauge, measured

T = TypeVar("T")

log = structlog.get_logger(__name__)

QUESTION_MS = 3_000
"""Limit of one question to the database: a scrape is given up after ten seconds by default."""


def read_page() -> bytes:
    """Measure and read what was counted; what cannot be had is left out, and named."""
    told = _Told()
    counts = told.ask("counters", _counts)
    gauges = [
        gauge
        for part, measure in measured.items()
        for gauge in told.ask(part, partial(_measured, measure)) or ()
    ]
    # Without the database there is what this process has counted and not been able to write.
    return exposition(
        [_release(), *told.gauges(), *gauges], counting.pending() if counts is None else counts
    )


class _Told:
    """What the database told, part by part, and what it did not."""

    def __init__(self) -> None:
        self._parts: dict[str, bool] = {}
        self._reached = True

    def ask(self, part: str, question: Callable[[], T]) -> T | None:
        """Return the answer; None when there is none. After a lost connection nothing is asked."""
        self._parts[part] = False
        if not self._reached:
            return None
        try:
            answer = question()
        except (DatabaseError, InterfaceError) as exc:
            log.warning("metrics_not_read", part=part, reason=type(exc).__name__)
            self._reached = _answers()
            return None
        self._parts[part] = True
        return answer

    def gauges(self) -> list[Gauge]:
        """Return which parts are in the page."""
        parts: dict[tuple[str, ...], float] = {
            (part,): there for part, there in self._parts.items()
        }
        return [
            Gauge("svc_database_up", "Whether the database answered.", (), {(): self._reached}),
            Gauge("svc_metrics_complete", "Whether this part is in this page.", ("part",), parts),
        ]


@contextmanager
def _limited() -> Iterator[None]:
    """Give up a question that takes long."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {QUESTION_MS}")
        yield


def _answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, InterfaceError):
        return False
    return True


def _counts() -> dict[Key, float]:
    services.flush()  # in no transaction: what is taken out of the memory must be committed
    with _limited():
        return services.stored()


def _measured(measure: Callable[..., list[Gauge]]) -> list[Gauge]:
    stale = timedelta(milliseconds=settings.WORKER_HEARTBEAT_STALE_MS)
    with _limited():
        return measure(stale=stale)


def _release() -> Gauge:
    return Gauge(
        "svc_release", "The release that runs.", ("version",), {(settings.SVC_VERSION,): 1}
    )
