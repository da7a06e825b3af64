"""Rows for tests, made the way the services make them."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from controlplane.work.models import Heartbeat
from runs.services import create_boot_run
from workspaces import services as workspaces
from workspaces.models import Attempt, BuildJob, Sandbox

OWNER = "usr_test"
LEASE = timedelta(minutes=15)


def make_job(*, spec: dict[str, Any] | None = None, **values: Any) -> BuildJob:
    """Create a queued job with its attempt, sandbox and workspace."""
    workspace = workspaces.create_workspace(owner_user_id=OWNER, name="Test")
    sandbox = Sandbox.objects.create(
        workspace=workspace,
        owner_user_id=OWNER,
        registry_id="default",
        repository=f"tests/{uuid.uuid4().hex[:12]}",
        tag="latest",
        spec=spec or {"harness": {"id": "shell"}},
    )
    attempt = workspaces.create_attempt(
        sandbox=sandbox,
        relation=Sandbox.Relation.LAUNCH,
        trigger_type=Attempt.TriggerType.API,
        requested_by=OWNER,
    )
    create_boot_run(attempt)
    return BuildJob.objects.create(
        attempt=attempt,
        registry_id="default",
        repository=sandbox.repository,
        tag=sandbox.tag,
        **{"max_attempts": 3, **values},
    )


def claim(job: BuildJob, worker_id: str = "worker-a", lease: timedelta = LEASE) -> BuildJob:
    """Claim ``job`` and return it as the worker sees it."""
    claimed = BuildJob.objects.claim(job.pk, worker_id=worker_id, lease=lease)
    assert claimed is not None
    return claimed


def make_worker(worker_id: str, *, seen: timedelta = timedelta(), engine: str = "") -> Heartbeat:
    """Write the heartbeat of a worker that was last seen ``seen`` ago."""
    kind = Heartbeat.Kind.BUILD
    Heartbeat.objects.beat(
        worker_id, kind=kind, hostname="test", pid=1, capacity=1, engine_name=engine
    )
    Heartbeat.objects.filter(pk=worker_id).update(seen_at=Now() - seen)
    return Heartbeat.objects.get(pk=worker_id)
