"""What ``GET /metrics`` measures of open runs and the run workers.

Reads partial indexes over what has not ended, like ``workspaces.queue_metrics``.
Database time only.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import connection
from django.db.models import Count, DurationField, ExpressionWrapper, F, Max, Q
from django.db.models.functions import Now

from controlplane.metrics.gauges import Gauge, single
from controlplane.work.models import Heartbeat
from runs.models import Run
from runs.recording import claims
from workspaces.models import Engine

_OPEN = """
SELECT mode, status, count(*) FROM runs_run
WHERE status IN ('queued', 'running') GROUP BY mode, status"""
_WORKERS = """
SELECT CASE
    WHEN seen_at <= statement_timestamp() - make_interval(secs => %s) THEN 'silent'
    WHEN draining THEN 'draining' ELSE 'alive' END AS state, count(*)
FROM work_heartbeat WHERE kind = 'run' GROUP BY state"""


def measure(*, stale: timedelta) -> list[Gauge]:
    """Return the gauges; a worker that was not heard for ``stale`` is silent."""
    with connection.cursor() as cursor:
        cursor.execute(_OPEN)
        open_runs = {(mode, status): number for mode, status, number in cursor.fetchall()}
        cursor.execute(_WORKERS, [stale.total_seconds()])
        workers = dict(cursor.fetchall())
    alive = Heartbeat.objects.run().slots_by_engine(stale=stale)
    slots = alive.labelled(Run.Mode.values, Engine.objects.served())
    unattended = claims.to_be_recorded().filter(
        Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=Now())
    )
    age = ExpressionWrapper(Now() - F("queued_at"), output_field=DurationField())
    waiting = unattended.aggregate(number=Count("pk"), oldest=Max(age))
    oldest = waiting["oldest"].total_seconds() if waiting["oldest"] else 0.0
    return [
        Gauge(
            "svc_runs_open",
            "Runs that have not ended.",
            ("mode", "status"),
            {
                (mode, status): open_runs.get((mode, status), 0)
                for mode in Run.Mode.values
                for status in ("queued", "running")
            },
        ),
        single("svc_runs_unclaimed", "Open runs that no worker is recording.", waiting["number"]),
        single("svc_runs_unclaimed_oldest_seconds", "Age of the oldest of them.", oldest),
        Gauge(
            "svc_run_workers",
            "Run workers; silent: without a heartbeat for so long that others take over.",
            ("state",),
            {(state,): workers.get(state, 0) for state in ("alive", "draining", "silent")},
        ),
        Gauge(
            "svc_run_slots",
            "Runs that live workers may record at once.",
            ("mode", "engine"),
            {labels: usage["capacity"] for labels, usage in slots.items()},
        ),
        Gauge(
            "svc_run_slots_in_use",
            "Runs that live workers were recording at their last heartbeat.",
            ("mode", "engine"),
            {labels: usage["in_use"] for labels, usage in slots.items()},
        ),
    ]
