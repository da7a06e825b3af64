"""The steps of an attempt for tests without a worker: what rows show then, without any lease."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models.functions import Now

from workspaces.models import Attempt, RuntimeInstance, Sandbox, WorkspaceEvent
from workspaces.runtimes.base import LaunchedRuntime
from workspaces.services import Event, record_event, record_events
from workspaces.status import SurfacedStatus


def _show(attempt: Attempt, status: SurfacedStatus) -> None:
    """Write the surfaced status of the attempt's sandbox where the caller knows what it is.

    It knows while it holds the attempt's job and has itself written the states that decide.
    """
    latest_of = Sandbox.objects.filter(latest_attempt_id=attempt.pk)
    latest_of.update(status=status, updated_at=Now())


def start_attempt(attempt: Attempt, *, worker_id: str, attempt_count: int) -> None:
    """Move a queued attempt to ``running``; one that runs already stays as it is."""
    if Attempt.objects.filter(pk=attempt.pk).start():
        record_event(
            attempt,
            WorkspaceEvent.Type.ATTEMPT_RUNNING,
            "A build worker took the attempt.",
            {"workerId": worker_id, "attemptCount": attempt_count},
        )
        _show(attempt, SurfacedStatus.RUNNING)


def await_runtime(attempt: Attempt, *, published: Mapping[str, Any], engine_name: str = "") -> None:
    """Write the ``pending`` runtime instance of an attempt whose image was published.

    From now on its container may exist on the engine, and no worker of another one launches it.

    An image is published once for each attempt, so there is none yet. The sandbox stays
    ``running``, as the attempt's start has left it.
    """
    RuntimeInstance.objects.create(run_id=attempt.run_id, attempt=attempt, engine_name=engine_name)
    record_events(
        attempt,
        [
            Event(WorkspaceEvent.Type.IMAGE_PUBLISHED, "The image was published.", published),
            Event(WorkspaceEvent.Type.RUNTIME_PENDING, "The workspace is being launched."),
        ],
    )


def mark_ready(attempt: Attempt, launched: LaunchedRuntime, *, engine_name: str = "") -> bool:
    """Move the runtime to ``running`` and the attempt to ``succeeded``; False if it was final."""
    if not Attempt.objects.filter(pk=attempt.pk).settle(Attempt.Status.SUCCEEDED):
        return False
    RuntimeInstance.objects.filter(run_id=attempt.run_id).update(
        status=RuntimeInstance.Status.RUNNING,
        adapter=launched.adapter,
        resource_id=launched.resource_id,
        reference=launched.reference,
        endpoint=launched.endpoint,
        engine_id=launched.engine_id,
        engine_name=engine_name,
        launched_at=Now(),
        updated_at=Now(),
    )
    record_events(
        attempt,
        [
            Event(
                WorkspaceEvent.Type.RUNTIME_RUNNING,
                "The workspace runs.",
                {
                    "adapter": launched.adapter,
                    "resourceId": launched.resource_id,
                    "reference": launched.reference,
                },
            ),
            Event(WorkspaceEvent.Type.ATTEMPT_SUCCEEDED, "The workspace is ready."),
        ],
    )
    _show(attempt, SurfacedStatus.READY)
    return True
