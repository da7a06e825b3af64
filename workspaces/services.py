"""Changes of workspaces, attempts and runtimes, each with the event that tells of it.

Every function that changes a state expects to be called inside a transaction, writes the event in
it, and brings the sandbox's surfaced status along. Who may do what, and the fencing of workers, is
decided by the callers in ``builds``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import DurationField, ExpressionWrapper, F, Value
from django.db.models.functions import Now

from accounts.providers import Provider
from accounts.resolution import Reference, Resolution
from controlplane.database.columns import ROWS_OF_A_STATEMENT
from controlplane.errors import NotFound
from workspaces.models import (
    Attempt,
    CredentialReference,
    RuntimeInstance,
    Sandbox,
    Workspace,
    WorkspaceEvent,
)
from workspaces.status import SurfacedStatus, surfaced_status

NO_CREDENTIALS = Resolution()
RUNNING = (RuntimeInstance.Status.RUNNING,)
RUNNING_OR_STOPPING = (*RUNNING, RuntimeInstance.Status.STOPPING)
_TIME_TO_LIVE = ExpressionWrapper(
    F("ttl_seconds") * Value(timedelta(seconds=1)), output_field=DurationField()
)


def get_workspace(workspace_id: uuid.UUID, *, owner_user_id: str | None) -> Workspace:
    """Return a workspace; a foreign one is as absent as an unknown one (``NotFound``)."""
    workspace = Workspace.objects.owned_by(owner_user_id).filter(pk=workspace_id).first()
    if workspace is None:
        raise NotFound("There is no such workspace.", code="workspace-not-found")
    assert isinstance(workspace, Workspace)
    return workspace


def rename_workspace(workspace_id: uuid.UUID, *, owner_user_id: str | None, name: str) -> Workspace:
    """Give a workspace another name and return it; the last one who renames wins."""
    workspace = get_workspace(workspace_id, owner_user_id=owner_user_id)
    workspace.name = name
    workspace.save(update_fields=["name", "updated_at"])
    return workspace


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell in a workspace's history."""

    type: WorkspaceEvent.Type
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


def record_events(attempt: Attempt, events: Sequence[Event]) -> None:
    """Append events of ``attempt`` to its workspace's history, in this order."""
    WorkspaceEvent.objects.bulk_create(
        WorkspaceEvent(
            workspace_id=attempt.workspace_id,
            attempt=attempt,
            type=event.type,
            message=event.message,
            data=dict(event.data),
        )
        for event in events
    )


def record_event(
    attempt: Attempt,
    event_type: WorkspaceEvent.Type,
    message: str,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Append an event of ``attempt`` to its workspace's history."""
    record_events(attempt, [Event(event_type, message, data or {})])


def record_workspace_event(
    workspace: Workspace,
    event_type: WorkspaceEvent.Type,
    message: str,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Append an event that is not of one attempt to a workspace's history."""
    WorkspaceEvent.objects.create(
        workspace=workspace, type=event_type, message=message, data=dict(data or {})
    )


def create_workspace(*, owner_user_id: str, name: str, ttl_seconds: int | None = None) -> Workspace:
    """Create a workspace without a sandbox, to be stopped ``ttl_seconds`` after each start."""
    workspace = Workspace.objects.create(
        owner_user_id=owner_user_id, name=name, ttl_seconds=ttl_seconds
    )
    record_workspace_event(
        workspace, WorkspaceEvent.Type.WORKSPACE_CREATED, f"Workspace {name} was created."
    )
    assert isinstance(workspace, Workspace)
    return workspace


def create_attempt(
    *,
    sandbox: Sandbox,
    relation: Sandbox.Relation,
    trigger_type: Attempt.TriggerType,
    requested_by: str,
    credentials: Resolution = NO_CREDENTIALS,
    placeholders: Mapping[uuid.UUID, str] | None = None,
) -> Attempt:
    """Create a queued attempt of ``sandbox`` and make it the latest one.

    ``credentials`` are the connected accounts that its workspace is given; of those that
    ``placeholders`` has, the placeholder.
    """
    instead = placeholders or {}
    attempt = Attempt.objects.create(
        sandbox=sandbox,
        workspace_id=sandbox.workspace_id,
        relation=relation,
        trigger_type=trigger_type,
        requested_by=requested_by,
        spec=sandbox.spec,
    )
    CredentialReference.objects.bulk_create(
        CredentialReference(
            attempt=attempt,
            account_id=one.account_id,
            provider=one.provider,
            placeholder=instead.get(one.account_id, ""),
        )
        for one in credentials.references
    )
    Sandbox.objects.filter(pk=sandbox.pk).update(
        latest_attempt=attempt, status=SurfacedStatus.QUEUED, updated_at=Now()
    )
    Workspace.objects.filter(pk=sandbox.workspace_id).update(
        latest_sandbox=sandbox, expires_at=Now() + _TIME_TO_LIVE, updated_at=Now()
    )
    record_event(
        attempt,
        WorkspaceEvent.Type.ATTEMPT_QUEUED,
        "An attempt was queued.",
        {
            "relation": relation,
            "triggerType": trigger_type,
            "runId": str(attempt.run_id),
            **_told_of(credentials),
        },
    )
    return attempt


def _told_of(credentials: Resolution) -> dict[str, list[str]]:
    """Return what the history tells of accounts, also of those that a profile could not give."""
    given = [str(one.account_id) for one in credentials.references]
    left_out = [str(account_id) for account_id in credentials.left_out]
    told = {"connectedAccountIds": given, "leftOutConnectedAccountIds": left_out}
    return {name: ids for name, ids in told.items() if ids}


def references_of(attempt: Attempt) -> list[Reference]:
    """Return the accounts that an attempt's workspace is given, in the order they were resolved."""
    rows = CredentialReference.objects.filter(attempt=attempt).order_by("pk")
    return [
        Reference(account_id, Provider(provider))
        for account_id, provider in rows.values_list("account_id", "provider")
    ]


def placeholders_of(attempt: Attempt) -> dict[uuid.UUID, str]:
    """Return what an attempt's workspace gets instead of the secrets of bound accounts."""
    rows = CredentialReference.objects.filter(attempt=attempt).exclude(placeholder="")
    return dict(rows.values_list("account_id", "placeholder"))


def refresh_sandbox(attempt_id: uuid.UUID) -> None:
    """Write the surfaced status of the attempt's sandbox, if it still is its latest attempt."""
    # Locked before the states are read: of two writers, the second sees what the first one wrote.
    locked = Sandbox.objects.select_for_update().filter(latest_attempt_id=attempt_id)
    sandbox = locked.values_list("pk", "status").first()
    if sandbox is None:
        return
    sandbox_id, shown = sandbox
    attempt, runtime, job = (
        Attempt.objects.filter(pk=attempt_id)
        .order_by("-jobs__id")
        .values_list("status", "runtime__status", "jobs__status")[0]
    )
    status = surfaced_status(attempt=attempt, job=job, runtime=runtime)
    if shown != status:
        Sandbox.objects.filter(pk=sandbox_id).update(status=status, updated_at=Now())


def was_ever_ready(attempt: Attempt) -> bool:
    """Whether the attempt's workspace was ready once, so that people may have work in it."""
    earlier = Attempt.objects.filter(workspace_id=attempt.workspace_id)
    return earlier.filter(status=Attempt.Status.SUCCEEDED).exists()


def fail_attempt(attempt: Attempt, *, code: str, message: str) -> bool:
    """Move the attempt to ``failed``; False when it was final already."""
    changed = Attempt.objects.filter(pk=attempt.pk).settle(
        Attempt.Status.FAILED, error_code=code, error_message=message
    )
    if changed:
        record_event(
            attempt,
            WorkspaceEvent.Type.ATTEMPT_FAILED,
            message,
            {"errorCode": code} if code else {},
        )
    refresh_sandbox(attempt.pk)
    return bool(changed)


def cancel_attempt(attempt: Attempt, *, reason: str) -> bool:
    """Move the attempt to ``cancelled``; False when it was final already."""
    changed = Attempt.objects.filter(pk=attempt.pk).settle(
        Attempt.Status.CANCELLED, error_message=reason
    )
    if changed:
        record_event(attempt, WorkspaceEvent.Type.ATTEMPT_CANCELLED, reason)
    refresh_sandbox(attempt.pk)
    return bool(changed)


def fail_runtime(attempt: Attempt, *, code: str, message: str) -> bool:
    """Write the attempt's runtime instance as ``failed``; False when it was final already."""
    changed = RuntimeInstance.objects.filter(run_id=attempt.run_id).settle(
        RuntimeInstance.Status.FAILED, error_code=code, error_message=message
    )
    if not changed and not RuntimeInstance.objects.filter(run_id=attempt.run_id).exists():
        RuntimeInstance.objects.create(
            run_id=attempt.run_id,
            attempt=attempt,
            status=RuntimeInstance.Status.FAILED,
            error_code=code,
            error_message=message,
            finished_at=Now(),
        )
        changed = 1
    if changed:
        data = {"errorCode": code} if code else {}
        record_event(attempt, WorkspaceEvent.Type.RUNTIME_FAILED, message, data)
    refresh_sandbox(attempt.pk)
    return bool(changed)


def end_runtimes(
    run_ids: Sequence[uuid.UUID],
    *,
    status: RuntimeInstance.Status,
    code: str,
    message: str,
    stopping: bool = False,
) -> int:
    """End those of these runtimes that still run, all for the same reason; return how many.

    With ``stopping`` also those that somebody is stopping. The same as :func:`fail_runtime` or
    :func:`stop_runtime` of each, in a few statements.
    """
    rows = RuntimeInstance.objects.select_for_update(of=("self",)).filter(
        run_id__in=run_ids, status__in=RUNNING_OR_STOPPING if stopping else RUNNING
    )
    locked = list(rows.order_by("run_id").values_list("attempt_id", "attempt__workspace_id"))
    attempt_ids = [attempt_id for attempt_id, _ in locked]
    RuntimeInstance.objects.filter(attempt_id__in=attempt_ids).settle(
        status, error_code=code, error_message=message
    )
    failed = status == RuntimeInstance.Status.FAILED
    types = WorkspaceEvent.Type
    WorkspaceEvent.objects.bulk_create(
        (
            WorkspaceEvent(
                workspace_id=workspace_id,
                attempt_id=attempt_id,
                type=types.RUNTIME_FAILED if failed else types.RUNTIME_STOPPED,
                message=message,
                data={"errorCode": code},
            )
            for attempt_id, workspace_id in locked
        ),
        batch_size=ROWS_OF_A_STATEMENT,
    )
    _refresh_sandboxes(attempt_ids)
    return len(locked)


def _refresh_sandboxes(attempt_ids: Sequence[uuid.UUID]) -> None:
    """Write the surfaced status of the sandboxes whose latest attempts these are."""
    locked = Sandbox.objects.select_for_update().filter(latest_attempt_id__in=attempt_ids)
    shown = dict(locked.order_by("pk").values_list("latest_attempt_id", "status"))
    changed: dict[str, list[uuid.UUID]] = {}
    states = Attempt.objects.filter(pk__in=shown).order_by("pk", "jobs__id")
    now = {
        attempt_id: surfaced_status(attempt=attempt, job=job, runtime=runtime)
        for attempt_id, attempt, runtime, job in states.values_list(
            "pk", "status", "runtime__status", "jobs__status"
        )
    }
    for attempt_id, status in now.items():
        if shown[attempt_id] != status:
            changed.setdefault(status, []).append(attempt_id)
    for surfaced, ids in changed.items():
        latest_of = Sandbox.objects.filter(latest_attempt_id__in=ids)
        latest_of.update(status=surfaced, updated_at=Now())


def begin_stop(attempt: Attempt, *, message: str) -> bool:
    """Move the attempt's runtime from ``running`` to ``stopping``; False when it does not run."""
    changed = RuntimeInstance.objects.filter(run_id=attempt.run_id).begin_stop()
    if changed:
        record_event(attempt, WorkspaceEvent.Type.RUNTIME_STOPPING, message)
        refresh_sandbox(attempt.pk)
    return bool(changed)


def stop_runtime(attempt: Attempt, *, code: str, message: str) -> bool:
    """Write the attempt's runtime instance as ``stopped``; False when it was final or absent."""
    changed = RuntimeInstance.objects.filter(run_id=attempt.run_id).settle(
        RuntimeInstance.Status.STOPPED, error_code=code, error_message=message
    )
    if changed:
        record_event(attempt, WorkspaceEvent.Type.RUNTIME_STOPPED, message, {"errorCode": code})
        refresh_sandbox(attempt.pk)
    return bool(changed)
