"""The run worker with its parts, out of the settings."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings

from controlplane.work.models import heartbeat_stale
from controlplane.work.worker import WorkerTimes
from runs.recording.program_start import RecordLimits
from runs.recording.run_worker import RunWorker
from workspaces.engines.runtime_adapters import placement_engine, runtime_adapter


def _milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def record_limits() -> RecordLimits:
    """Return how runs are recorded."""
    return RecordLimits(
        policy=settings.RUN_SPOOL_POLICY,
        input=settings.RUN_INPUT_RECORDING,
        spool_bytes=settings.RUN_SPOOL_BYTES,
        segment_bytes=settings.RUN_SPOOL_SEGMENT_BYTES,
        patch_bytes=settings.RUN_CHANGES_PATCH_BYTES,
        max_files=settings.RUN_CHANGES_MAX_FILES,
        time_seconds=settings.RUN_TIME_LIMIT_MS / 1000,
        grace_seconds=settings.RUN_STOP_GRACE_MS / 1000,
    )


def run_worker(*, max_runs: int | None = None) -> RunWorker:
    """Return a run worker with every setting applied."""
    return RunWorker(
        adapter=runtime_adapter(),
        limits=record_limits(),
        broker_url=settings.RABBITMQ_URL,
        broker_timeout=settings.RABBITMQ_CONNECT_TIMEOUT_MS / 1000,
        capacity=settings.RUN_WORKER_CAPACITY,
        sessions=settings.RUN_WORKER_SESSIONS,
        workspaces=settings.RUN_WORKER_WORKSPACES,
        times=WorkerTimes(
            lease=_milliseconds(settings.RUN_LEASE_DURATION_MS),
            heartbeat=_milliseconds(settings.WORKER_HEARTBEAT_INTERVAL_MS),
            stale=heartbeat_stale(),
            sweep=_milliseconds(settings.WORKER_SWEEP_INTERVAL_MS),
            overdue=_milliseconds(settings.RUN_QUEUED_OVERDUE_MS),
            keep=_milliseconds(settings.WORKER_RECONCILE_GRACE_MS),
        ),
        max_runs=max_runs,
        engine=placement_engine(),
    )
