"""What ``GET /metrics`` measures of the build queue, transitions, the build workers and workspaces.

Every question reads a partial index over what is not finished, so the answers cost the same however
many jobs there ever were. Database time only.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import connection

from controlplane.metrics.gauges import Gauge, single
from controlplane.work.models import Heartbeat
from workspaces.models import BuildJob, Engine, Transition, WarmMember

_QUEUED = """
SELECT count(*), coalesce(extract(epoch FROM statement_timestamp() - min(queued_at)), 0)
FROM workspaces_buildjob WHERE status = 'queued'"""
_LEASED = """
SELECT count(*) FILTER (WHERE status = 'running'), count(*) FILTER (WHERE status = 'succeeded'),
    count(*) FILTER (WHERE lease_expires_at <= statement_timestamp()),
    coalesce(extract(epoch FROM statement_timestamp() - min(claimed_at)), 0)
FROM workspaces_buildjob WHERE lease_expires_at IS NOT NULL"""
_SANDBOXES = """
SELECT status, count(*) FROM workspaces_sandbox
WHERE status IN ('queued', 'running', 'ready') GROUP BY status
UNION ALL SELECT 'warm ' || status, count(*) FROM workspaces_warmmember GROUP BY status"""
_TRANSITIONS = """
SELECT kind, count(*), extract(epoch FROM statement_timestamp() - min(requested_at))
FROM workspaces_transition WHERE finished_at IS NULL GROUP BY kind"""
_DISKS = """
SELECT coalesce(sum(disk_bytes), 0), coalesce(max(disk_bytes), 0)
FROM workspaces_runtimeinstance WHERE status IN ('pending', 'running', 'stopping')"""
_WORKERS = """
SELECT CASE
    WHEN seen_at <= statement_timestamp() - make_interval(secs => %s) THEN 'silent'
    WHEN draining THEN 'draining' ELSE 'alive' END AS state, count(*)
FROM work_heartbeat WHERE kind = 'build' GROUP BY state"""


def measure(*, stale: timedelta) -> list[Gauge]:
    """Return the gauges; a worker that was not heard for ``stale`` is silent."""
    with connection.cursor() as cursor:
        cursor.execute(_QUEUED)
        queued, oldest = cursor.fetchone() or (0, 0)
        cursor.execute(_LEASED)
        building, launching, expired, longest = cursor.fetchone() or (0, 0, 0, 0)
        cursor.execute(_SANDBOXES)
        sandboxes = dict(cursor.fetchall())
        cursor.execute(_TRANSITIONS)
        transitions = {kind: (number, age) for kind, number, age in cursor.fetchall()}
        cursor.execute(_DISKS)
        disk_bytes, largest_disk = cursor.fetchone() or (0, 0)
        cursor.execute(_WORKERS, [stale.total_seconds()])
        workers = dict(cursor.fetchall())
    alive = Heartbeat.objects.build().slots_by_engine(stale=stale)
    slots = alive.labelled(BuildJob.Lane.values, Engine.objects.served())
    phases = {"queued": queued, "building": building, "launching": launching}
    return [
        Gauge(
            "svc_build_jobs",
            "Unfinished build jobs, by state.",
            ("phase",),
            {(phase,): number for phase, number in phases.items()},
        ),
        single("svc_build_queue_oldest_seconds", "Age of the oldest queued build job.", oldest),
        single("svc_build_oldest_claim_seconds", "Age of the oldest current claim.", longest),
        single(
            "svc_build_leases_expired", "Claimed build jobs that no worker is working on.", expired
        ),
        Gauge(
            "svc_sandboxes",
            "Sandboxes that are being started or are ready.",
            ("status",),
            {(status,): sandboxes.get(status, 0) for status in ("queued", "running", "ready")},
        ),
        Gauge(
            "svc_transitions_open",
            "Stops and deletes of workspaces that are requested but not finished.",
            ("kind",),
            {(kind,): transitions.get(kind, (0, 0))[0] for kind in Transition.Kind.values},
        ),
        single(
            "svc_transitions_oldest_seconds",
            "Age of the oldest unfinished stop or delete.",
            max((age for _, age in transitions.values()), default=0),
        ),
        single(
            "svc_workspaces_disk_bytes",
            "Disk that live workspaces used when last measured.",
            disk_bytes,
        ),
        single("svc_workspaces_largest_disk_bytes", "The largest of these.", largest_disk),
        Gauge(
            "svc_build_workers",
            "Build workers; silent: without a heartbeat for so long that others take over.",
            ("state",),
            {(state,): workers.get(state, 0) for state in ("alive", "draining", "silent")},
        ),
        Gauge(
            "svc_build_slots",
            "Builds and starts that live workers may do at once.",
            ("lane", "engine"),
            {labels: usage["capacity"] for labels, usage in slots.items()},
        ),
        Gauge(
            "svc_build_slots_in_use",
            "Builds and starts that they were doing at their last heartbeat.",
            ("lane", "engine"),
            {labels: usage["in_use"] for labels, usage in slots.items()},
        ),
        Gauge(
            "svc_warm_members",
            "Containers of the warm pool; claimed: they are a workspace's.",
            ("status",),
            {(status,): sandboxes.get(f"warm {status}", 0) for status in WarmMember.Status.values},
        ),
    ]
