"""Workspaces that are ready, as far as the rows say; for tests that execute nothing."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models.functions import Now

from builds.models import BuildJob
from tests.factories import make_job
from workspaces import services as workspaces
from workspaces.models import Attempt
from workspaces.runtimes.base import LaunchedRuntime


def ready_attempt(*, spec: dict[str, Any] | None = None) -> Attempt:
    """Return the attempt of a workspace whose rows are those of a ready one."""
    job = make_job(spec=spec)
    attempt = job.attempt
    workspaces.start_attempt(attempt, worker_id="worker-a", attempt_count=1)
    workspaces.await_runtime(attempt, published={})
    container = uuid.uuid4().hex
    BuildJob.objects.filter(pk=job.pk).update(
        status=BuildJob.Status.SUCCEEDED,
        published_digest=f"sha256:{'0' * 64}",
        finished_at=Now(),
    )
    assert workspaces.mark_ready(
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
