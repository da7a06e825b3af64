"""Workspaces that are ready, as far as the rows say; for tests that execute nothing."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models.functions import Now
from django.utils import timezone

from tests.factories import OWNER, make_job
from tests.support import attempt_steps
from workspaces.models import Attempt, BuildJob, RuntimeInstance, Sandbox, Workspace
from workspaces.runtimes.base import LaunchedRuntime


def ready_attempt(*, spec: dict[str, Any] | None = None) -> Attempt:
    """Return the attempt of a workspace whose rows are those of a ready one."""
    job = make_job(spec=spec)
    attempt = job.attempt
    attempt_steps.start_attempt(attempt, worker_id="worker-a", attempt_count=1)
    attempt_steps.await_runtime(attempt, published={})
    container = uuid.uuid4().hex
    BuildJob.objects.filter(pk=job.pk).update(
        status=BuildJob.Status.SUCCEEDED,
        published_digest=f"sha256:{'0' * 64}",
        finished_at=Now(),
    )
    assert attempt_steps.mark_ready(
        attempt,
        LaunchedRuntime(
            adapter="docker",
            resource_id=container,
            reference=f"svc-{container[:12]}",
            endpoint=f"docker-exec://{container}",
            engine_id="engine",
        ),
    )
    return attempt


def ready_attempts(number: int) -> list[Attempt]:
    """Return the attempts of so many ready workspaces, written in bulk."""
    now = timezone.now()
    first = ready_attempt()
    sandbox = Sandbox.objects.get(pk=first.sandbox_id)
    rows: list[tuple[Workspace, Sandbox, Attempt, RuntimeInstance]] = []
    for position in range(number - 1):
        workspace = Workspace(owner_user_id=OWNER, name=f"Workspace {position}")
        copy = Sandbox(
            workspace=workspace,
            owner_user_id=OWNER,
            status="ready",
            registry_id="default",
            repository=f"tests/{position}",
            tag="latest",
            spec=sandbox.spec,
        )
        attempt = Attempt(
            sandbox=copy,
            workspace=workspace,
            status="succeeded",
            requested_by=OWNER,
            spec=copy.spec,
            finished_at=now,
        )
        runtime = RuntimeInstance(
            run_id=attempt.run_id,
            attempt=attempt,
            status="running",
            resource_id=attempt.run_id.hex,
            endpoint=f"docker-exec://{attempt.run_id.hex}",
            engine_id="engine",
            launched_at=now,
        )
        rows.append((workspace, copy, attempt, runtime))
    Workspace.objects.bulk_create(row[0] for row in rows)
    Sandbox.objects.bulk_create(row[1] for row in rows)
    Attempt.objects.bulk_create(row[2] for row in rows)
    RuntimeInstance.objects.bulk_create(row[3] for row in rows)
    for workspace, copy, attempt, _ in rows:
        copy.latest_attempt, workspace.latest_sandbox = attempt, copy
    Sandbox.objects.bulk_update([row[1] for row in rows], ["latest_attempt"])
    Workspace.objects.bulk_update([row[0] for row in rows], ["latest_sandbox"])
    BuildJob.objects.bulk_create(
        BuildJob(
            attempt=attempt,
            status="succeeded",
            registry_id="default",
            repository=copy.repository,
            tag="latest",
            max_attempts=3,
            published_digest="sha256:0",
            finished_at=now,
        )
        for _, copy, attempt, _ in rows
    )
    return [first, *(row[2] for row in rows)]
