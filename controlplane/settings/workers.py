"""The queues, the workers of builds and runs, and the records."""

from __future__ import annotations

from environs import validate

from controlplane.settings_environment import (
    absolute_path_or_none,
    credentials_key,
    env,
    not_above,
    note_fault,
    positive,
    queue,
    secret,
    zero_or_more,
)

# ---------------------------------------------------------------- the queue and the build worker
WORKSPACE_BUILD_QUEUE = queue("WORKSPACE_BUILD_QUEUE", "sandbox-image-builds")
WORKSPACE_BUILD_QUEUE_PREFETCH = positive("WORKSPACE_BUILD_QUEUE_PREFETCH", 1)
WORKSPACE_START_CONCURRENCY = positive("WORKSPACE_START_CONCURRENCY", 8)
WORKSPACE_WARM_POOL_SIZE = zero_or_more("WORKSPACE_WARM_POOL_SIZE", 0)
WORKSPACE_WARM_POOL_MEMORY_MB = zero_or_more("WORKSPACE_WARM_POOL_MEMORY_MB", 0)
WORKSPACE_BUILD_JOB_LEASE_DURATION_MS = positive("WORKSPACE_BUILD_JOB_LEASE_DURATION_MS", 900_000)
WORKSPACE_BUILD_JOB_MAX_ATTEMPTS = positive("WORKSPACE_BUILD_JOB_MAX_ATTEMPTS", 3)
WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS = positive("WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS", 10_000)
WORKER_HEARTBEAT_INTERVAL_MS = positive("WORKER_HEARTBEAT_INTERVAL_MS", 5_000)
WORKER_HEARTBEAT_STALE_MS = positive("WORKER_HEARTBEAT_STALE_MS", 20_000)
WORKER_ALIVE_FILE: str = env.str("WORKER_ALIVE_FILE", "", validate=absolute_path_or_none)
WORKER_SWEEP_INTERVAL_MS = positive("WORKER_SWEEP_INTERVAL_MS", 3_000)
WORKER_RECONCILE_INTERVAL_MS = positive("WORKER_RECONCILE_INTERVAL_MS", 10_000)
WORKER_RECONCILE_GRACE_MS = positive("WORKER_RECONCILE_GRACE_MS", 60_000)
WORKER_CREDENTIALS_INTERVAL_MS = positive("WORKER_CREDENTIALS_INTERVAL_MS", 30_000)
WORKER_IMAGES_INTERVAL_MS = positive("WORKER_IMAGES_INTERVAL_MS", 300_000)
WORKSPACE_KEEP_ENDED_MS = positive("WORKSPACE_KEEP_ENDED_MS", 86_400_000)
WORKSPACE_IMAGE_KEEP_MS = positive("WORKSPACE_IMAGE_KEEP_MS", 604_800_000)

# ---------------------------------------------------------------- runs and their records
WORKSPACE_RUN_QUEUE = queue("WORKSPACE_RUN_QUEUE", "workspace-run-executions")
if WORKSPACE_RUN_QUEUE == WORKSPACE_BUILD_QUEUE:
    note_fault("WORKSPACE_RUN_QUEUE", "Must differ from WORKSPACE_BUILD_QUEUE.")
RUN_WORKER_CAPACITY = positive("RUN_WORKER_CAPACITY", 64)
RUN_WORKER_SESSIONS = positive("RUN_WORKER_SESSIONS", 256)
RUN_WORKER_WORKSPACES = positive("RUN_WORKER_WORKSPACES", 1024)
RUN_LEASE_DURATION_MS = positive("RUN_LEASE_DURATION_MS", 60_000)
RUN_QUEUED_OVERDUE_MS = positive("RUN_QUEUED_OVERDUE_MS", 10_000)
RUN_TIME_LIMIT_MS = positive("RUN_TIME_LIMIT_MS", 3_600_000)
RUN_MAX_TIME_LIMIT_MS = positive("RUN_MAX_TIME_LIMIT_MS", 86_400_000)
not_above("RUN_TIME_LIMIT_MS", RUN_TIME_LIMIT_MS, "RUN_MAX_TIME_LIMIT_MS", RUN_MAX_TIME_LIMIT_MS)
RUN_STOP_GRACE_MS = positive("RUN_STOP_GRACE_MS", 10_000)
RUN_SPOOL_BYTES = positive("RUN_SPOOL_BYTES", 256 * 1024**2)
RUN_SPOOL_SEGMENT_BYTES = positive("RUN_SPOOL_SEGMENT_BYTES", 8 * 1024**2)
RUN_SPOOL_POLICY: str = env.str(
    "RUN_SPOOL_POLICY", "block", validate=validate.OneOf(["block", "drop"])
)
RUN_INPUT_RECORDING: str = env.str(
    "RUN_INPUT_RECORDING", "masked", validate=validate.OneOf(["off", "masked", "full"])
)
RUN_CHANGES_PATCH_BYTES = positive("RUN_CHANGES_PATCH_BYTES", 1024**2)
RUN_CHANGES_MAX_FILES = positive("RUN_CHANGES_MAX_FILES", 20_000)
SVC_RECORD_SIGNING_KEY = secret("SVC_RECORD_SIGNING_KEY", check=credentials_key)
