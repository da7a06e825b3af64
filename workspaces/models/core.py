"""Workspaces, the sandboxes that start them, their attempts, runtimes and events."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from controlplane.database.ids import OWNER_MAX_LENGTH, IdOrder, uuid7
from workspaces.models.known_engines import here
from workspaces.status import SurfacedStatus

ERROR_CODE_MAX_LENGTH = 64
ENGINE_GONE = "engine-gone"
"""The code of a runtime whose engine an operator has declared gone for good."""
EVENTS_CHANNEL = "workspace_events"
"""Where events are announced, as ``{workspaceId, ownerUserId}``; migration 0002 has the trigger."""


class OwnedQuerySet(models.QuerySet[Any]):
    """Rows that belong to an owner."""

    def owned_by(self, owner_user_id: str | None) -> OwnedQuerySet:
        """Keep the rows of one owner; of everybody when the caller names none."""
        return self if owner_user_id is None else self.filter(owner_user_id=owner_user_id)


class Workspace(models.Model):
    """A managed environment that people and agents work in.

    Its state is that of its latest sandbox, whose state is derived (``workspaces.status``), until
    it is deleted: then its containers and volumes are gone, and its row and records stay.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH)
    name = models.CharField(max_length=120)
    latest_sandbox = models.ForeignKey(
        "workspaces.Sandbox", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    ttl_seconds = models.PositiveIntegerField(
        null=True, help_text="How long after each start it is stopped; null: never."
    )
    expires_at = models.DateTimeField(null=True, help_text="When it is stopped automatically.")
    deleted_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = OwnedQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["owner_user_id"], name="workspace_owner"),
            models.Index(
                "owner_user_id",
                IdOrder("id").desc(),
                name="workspace_present",
                condition=Q(deleted_at__isnull=True),
            ),
            models.Index(
                "owner_user_id",
                IdOrder("id").desc(),
                name="workspace_deleted",
                condition=Q(deleted_at__isnull=False),
            ),
            models.Index(
                fields=["expires_at"],
                name="workspace_expiring",
                condition=Q(expires_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


class Sandbox(models.Model):
    """One request to start a workspace: a blueprint, and where its image goes.

    ``status`` follows its latest attempt. It is written in the transaction that changes the
    attempt, the job or the runtime instance, and always holds what
    :func:`workspaces.status.surfaced_status` says of them.
    """

    class Relation(models.TextChoices):
        """Why a sandbox or attempt was started."""

        LAUNCH = "launch"
        REBUILD = "rebuild"
        RETRY = "retry"
        RESUME = "resume"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="sandboxes")
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH)
    status = models.CharField(
        max_length=16, choices=SurfacedStatus.choices, default=SurfacedStatus.QUEUED
    )
    relation = models.CharField(max_length=16, choices=Relation.choices, default=Relation.LAUNCH)
    registry_id = models.CharField(max_length=255)
    repository = models.CharField(max_length=255)
    tag = models.CharField(max_length=128)
    spec = models.JSONField(help_text="The blueprint with every default filled in.")
    latest_attempt = models.ForeignKey(
        "workspaces.Attempt", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = OwnedQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "sandboxes"
        indexes = [
            models.Index(fields=["workspace", "-id"], name="sandbox_workspace"),
            models.Index(fields=["status", "id"], name="sandbox_status"),
            models.Index(
                "owner_user_id", "status", IdOrder("workspace_id").desc(), name="sandbox_of_owner"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=SurfacedStatus.values), name="sandbox_status_known"
            )
        ]

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag} ({self.id})"


class AttemptQuerySet(models.QuerySet["Attempt"]):
    """Transitions of attempts; each returns how many rows it changed (0 or 1)."""

    def start(self) -> int:
        """Move queued attempts to running. One that runs already keeps its start."""
        return self.filter(status=Attempt.Status.QUEUED).update(
            status=Attempt.Status.RUNNING, started_at=Now(), updated_at=Now()
        )

    def settle(self, status: Attempt.Status, **values: Any) -> int:
        """Move attempts that are not final to the final ``status``."""
        return self.exclude(status__in=Attempt.TERMINAL).update(
            status=status, finished_at=Now(), updated_at=Now(), **values
        )


class Attempt(models.Model):
    """One try to build, publish and launch a sandbox.

    ::

        queued → running → succeeded
           │         ├───→ failed
           └─────────┴───→ cancelled          (queued → failed: the queue could not be reached)

    ``run_id`` is its boot run: the record of the build's output, the lifecycle steps and the
    foreground process. Final states are final; trying again is another attempt.
    """

    class Status(models.TextChoices):
        """The specification's states of an attempt, and ``cancelled``."""

        QUEUED = "queued"
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"

    TERMINAL = {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}

    class TriggerType(models.TextChoices):
        """Who or what asked for the attempt."""

        API = "api"
        MANUAL = "manual"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    sandbox = models.ForeignKey(Sandbox, on_delete=models.CASCADE, related_name="attempts")
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="attempts")
    run_id = models.UUIDField(unique=True, default=uuid7, editable=False)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.QUEUED)
    relation = models.CharField(
        max_length=16, choices=Sandbox.Relation.choices, default=Sandbox.Relation.LAUNCH
    )
    trigger_type = models.CharField(
        max_length=16, choices=TriggerType.choices, default=TriggerType.API
    )
    requested_by = models.CharField(max_length=OWNER_MAX_LENGTH)
    spec = models.JSONField(help_text="The blueprint as it was when the attempt was made.")
    error_code = models.CharField(max_length=ERROR_CODE_MAX_LENGTH, blank=True)
    error_message = models.TextField(blank=True)
    queued_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = AttemptQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["workspace", "-id"], name="attempt_workspace"),
            models.Index(
                fields=["id"],
                name="attempt_open",
                condition=Q(status__in=["queued", "running"]),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=["queued", "running"], finished_at__isnull=True)
                | Q(status__in=["succeeded", "failed", "cancelled"], finished_at__isnull=False),
                name="attempt_finished_when_final",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.id} ({self.status})"

    @property
    def is_persistent(self) -> bool:
        """Whether the workspace's home and root are kept, and it starts again with its engine."""
        return bool(self.spec.get("runtime", {}).get("persistence") == "persistent")

    @property
    def duration_ms(self) -> int | None:
        """Milliseconds from start to finish; None while one of them is missing."""
        if self.started_at is None or self.finished_at is None:
            return None
        return max(0, round((self.finished_at - self.started_at).total_seconds() * 1000))


class CredentialReference(models.Model):
    """A connected account that an attempt's workspace is given: which one, never its secret.

    ``delivered_generation`` tells which connection of the account the workspace was given, so that
    what it renews of an earlier one never replaces a later one. ``withdrawn_at`` is set while the
    account is taken from a workspace that runs, because it was deleted or marked invalid.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="credentials")
    account = models.ForeignKey(
        "accounts.ConnectedAccount", on_delete=models.PROTECT, related_name="+"
    )
    provider = models.CharField(max_length=16)
    delivered_generation = models.PositiveIntegerField(null=True)
    delivered_at = models.DateTimeField(null=True)
    withdrawn_at = models.DateTimeField(null=True)
    placeholder = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="What it gets instead of the secret.",
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["attempt", "account"], name="credential_reference_once")
        ]

    def __str__(self) -> str:
        return f"{self.provider} {self.account_id} of {self.attempt_id}"


class RuntimeInstanceQuerySet(models.QuerySet["RuntimeInstance"]):
    """Transitions of runtime instances; each returns how many rows it changed."""

    def expected_to_run(self, *, engine_id: str) -> RuntimeInstanceQuerySet:
        """Keep the runtimes that should have a live container on this engine."""
        return self.filter(status=RuntimeInstance.Status.RUNNING, engine_id__in=[engine_id, ""])

    def of_engine(self, name: str) -> RuntimeInstanceQuerySet:
        """Keep the runtimes that a worker of the engine ``name`` may look after; "": of any."""
        return self.filter(here(name)) if name else self

    def due_for_disk_look(self, *, every: timedelta) -> RuntimeInstanceQuerySet:
        """Keep those whose disk was not looked at for so long; first those never looked at."""
        due = Q(disk_looked_at__isnull=True) | Q(disk_looked_at__lte=Now() - every)
        return self.filter(due).order_by(F("disk_looked_at").asc(nulls_first=True), "run_id")

    def begin_stop(self) -> int:
        """Move runtimes that run to ``stopping``; their containers are still to be removed."""
        return self.filter(status=RuntimeInstance.Status.RUNNING).update(
            status=RuntimeInstance.Status.STOPPING, updated_at=Now()
        )

    def settle(self, status: RuntimeInstance.Status, **values: Any) -> int:
        """Move runtimes that are not final to the final ``status``."""
        return self.exclude(status__in=RuntimeInstance.TERMINAL).update(
            status=status, finished_at=Now(), updated_at=Now(), **values
        )


class RuntimeInstance(models.Model):
    """What runs for an attempt: the container, keyed by the attempt's ``runId``.

    ::

        pending → running → stopping → stopped      (asked for; the container is gone by then)
           │         ├───────────────→ stopped      (the foreground ended with 0)
           ├─────────┼───────────────→ failed       (launch failed, container gone or exited)
           └─────────────────────────→ stopped      (cancelled)

    ``pending`` is written when the image is published, ``running`` once the workspace is ready.
    """

    class Status(models.TextChoices):
        """The specification's states of a runtime instance, ``stopping`` and ``stopped``."""

        PENDING = "pending"
        RUNNING = "running"
        STOPPING = "stopping"
        FAILED = "failed"
        STOPPED = "stopped"

    TERMINAL = {Status.FAILED, Status.STOPPED}
    LIVE = {Status.PENDING, Status.RUNNING, Status.STOPPING}

    lost_since: datetime | None = None
    persistence: str | None = None
    """Set by reads that say why something waits (``lifecycle.attempt_states``)."""

    run_id = models.UUIDField(primary_key=True, editable=False)
    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, related_name="runtime")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.PENDING)
    adapter = models.CharField(max_length=32, blank=True)
    resource_id = models.CharField(max_length=255, blank=True)
    reference = models.CharField(max_length=255, blank=True)
    endpoint = models.CharField(max_length=512, blank=True)
    engine_id = models.CharField(max_length=128, blank=True)
    engine_name = models.CharField(
        max_length=63,
        blank=True,
        default="",
        db_default="",
        help_text="The engine it was placed on (models.known_engines); of none when that is gone.",
    )
    disk_bytes = models.BigIntegerField(
        null=True, help_text="Disk space of its container and volumes when last measured."
    )
    disk_looked_at = models.DateTimeField(
        null=True, help_text="When that was last tried, whether or not it could be measured."
    )
    error_code = models.CharField(max_length=ERROR_CODE_MAX_LENGTH, blank=True)
    error_message = models.TextField(blank=True)
    launched_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = RuntimeInstanceQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["run_id"],
                name="runtime_live",
                condition=Q(status__in=["pending", "running", "stopping"]),
            ),
            # Each second it is asked what is left of engines that are gone.
            models.Index(fields=["engine_name"], name="runtime_engine"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=~Q(status__in=["running", "stopping"])
                | (~Q(resource_id="") & ~Q(endpoint="") & Q(launched_at__isnull=False)),
                name="runtime_running_has_endpoint",
            ),
            models.CheckConstraint(
                condition=Q(finished_at__isnull=True) | Q(status__in=["failed", "stopped"]),
                name="runtime_finished_when_final",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} ({self.status})"


class WorkspaceEvent(models.Model):
    """Something that happened to a workspace; written with the change it tells, never changed.

    ``position`` is its place in streams. It is given once the event can be seen
    (``workspaces.event_order``), because ids are older than the commits that show them. Each insert
    is announced on ``EVENTS_CHANNEL`` by a trigger.
    """

    class Type(models.TextChoices):
        """Every kind of event."""

        WORKSPACE_CREATED = "workspace.created"
        STOP_REQUESTED = "workspace.stop-requested"
        WORKSPACE_STOPPED = "workspace.stopped"
        DELETE_REQUESTED = "workspace.delete-requested"
        WORKSPACE_DELETED = "workspace.deleted"
        TTL_CHANGED = "workspace.ttl-changed"
        ATTEMPT_QUEUED = "attempt.queued"
        ATTEMPT_RUNNING = "attempt.running"
        ATTEMPT_SUCCEEDED = "attempt.succeeded"
        ATTEMPT_FAILED = "attempt.failed"
        ATTEMPT_CANCELLED = "attempt.cancelled"
        IMAGE_PUBLISHED = "image.published"
        RUNTIME_PENDING = "runtime.pending"
        RUNTIME_RUNNING = "runtime.running"
        RUNTIME_FAILED = "runtime.failed"
        RUNTIME_STOPPING = "runtime.stopping"
        RUNTIME_STOPPED = "runtime.stopped"
        CREDENTIALS_DELIVERED = "credentials.delivered"
        CREDENTIALS_WITHDRAWN = "credentials.withdrawn"
        CREDENTIALS_RENEWED = "credentials.renewed"
        EGRESS_ALLOWED = "egress.allowed"
        EGRESS_REFUSED = "egress.refused"
        EGRESS_FINDING = "egress.finding"
        EGRESS_CHANGED = "egress.changed"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="events")
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.CASCADE, related_name="events")
    type = models.CharField(max_length=32, choices=Type.choices)
    message = models.TextField()
    data = models.JSONField(default=dict)
    occurred_at = models.DateTimeField(db_default=Now())
    position = models.BigIntegerField(null=True, unique=True, editable=False)

    class Meta:
        indexes = [
            models.Index(fields=["workspace", "-id"], name="event_workspace"),
            models.Index(fields=["workspace", "position"], name="event_of_stream"),
            models.Index(fields=["id"], name="event_unplaced", condition=Q(position__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.type} of {self.workspace_id}"
