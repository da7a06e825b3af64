"""Transitions of workspaces that exist: to stopped, or to deleted.

A transition is stored before anything is done, and a build worker carries it out (see
``workspaces.lifecycle.teardown``). A workspace has at most one open transition: a stop may become a
delete, and nothing takes a delete back.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from controlplane.database.ids import OWNER_MAX_LENGTH, uuid7
from controlplane.work.leases import Fence, LeasedQuerySet, LeasedRow
from controlplane.work.models import Heartbeat
from workspaces.models.core import ERROR_CODE_MAX_LENGTH, RuntimeInstance
from workspaces.models.known_engines import here

CHANNEL = "svc_transitions"
"""Where a new transition is announced (``controlplane.work.notifications``)."""


class TransitionQuerySet(LeasedQuerySet["Transition"]):
    """The leases and the end of transitions. Database time only."""

    def open(self) -> TransitionQuerySet:
        """Keep the transitions that are not finished."""
        return self.filter(finished_at__isnull=True)

    def of_engine(self, name: str) -> TransitionQuerySet:
        """Keep what a worker of the engine ``name`` may do: nothing runs elsewhere; "": all."""
        if not name:
            return self
        runtimes = RuntimeInstance.objects.filter(
            ~here(name),
            attempt=OuterRef("workspace__latest_sandbox__latest_attempt"),
        )
        return self.filter(~Exists(runtimes))

    def claim_next(
        self,
        worker_id: str,
        *,
        alive: models.QuerySet[Heartbeat] | None,
        lease: timedelta,
        engine: str = "",
    ) -> Transition | None:
        """Acquire the transition that waits longest; None when there is none.

        Claimable is what nobody holds, or a worker whose lease ran out or that is not among those
        ``alive``, and whose next try is due. With ``alive`` None nobody counts as dead.
        """
        due = Q(retry_at__isnull=True) | Q(retry_at__lte=Now())
        claimable = (
            self.open()
            .of_engine(engine)
            .filter(due)
            .free(alive=alive)
            .order_by("requested_at", "id")
        )
        return claimable.acquire(worker_id=worker_id, lease=lease, retry_at=None)

    def writable(self, fence: Fence) -> TransitionQuerySet:
        """Keep the transition while its holder may write to it."""
        return self.open().held_by(fence)

    def retry_later(
        self, fence: Fence, *, after: timedelta, code: str = "", message: str = ""
    ) -> None:
        """Release the lease until it is tried again ``after`` a time; say what is waited for."""
        self.open().release(
            [fence],
            worker_id="",
            lease_expires_at=None,
            retry_at=Now() + after,
            waiting_code=code,
            waiting_message=message,
        )


class Transition(LeasedRow):
    """A stop or a delete of a workspace.

    ::

        open (stop) → open (delete)
          │              │
          └──────────────┴─→ finished       (the containers are gone; of a delete, the volumes too)

    While a build worker is at it, it has a lease.
    """

    class Kind(models.TextChoices):
        """What is wanted."""

        STOP = "stop"
        DELETE = "delete"

    class Cause(models.TextChoices):
        """Why."""

        USER = "user"
        OPERATOR = "operator"
        EXPIRED = "expired"
        DISK = "disk"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    workspace = models.ForeignKey(
        "workspaces.Workspace", on_delete=models.CASCADE, related_name="transitions"
    )
    kind = models.CharField(max_length=16, choices=Kind.choices)
    cause = models.CharField(max_length=16, choices=Cause.choices)
    detail = models.TextField(blank=True, help_text="What its owner is told about the cause.")
    requested_by = models.CharField(max_length=OWNER_MAX_LENGTH)
    requested_at = models.DateTimeField(db_default=Now())
    claim_count = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    waiting_code = models.CharField(max_length=ERROR_CODE_MAX_LENGTH, blank=True)
    waiting_message = models.TextField(blank=True)
    finished_at = models.DateTimeField(null=True)

    objects = TransitionQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["requested_at", "id"],
                name="transition_open",
                condition=Q(finished_at__isnull=True),
            ),
            models.Index(fields=["workspace", "-id"], name="transition_workspace"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["workspace"],
                condition=Q(finished_at__isnull=True),
                name="transition_one_open_per_workspace",
            ),
            models.CheckConstraint(
                condition=Q(lease_expires_at__isnull=True)
                | (Q(finished_at__isnull=True) & ~Q(worker_id="")),
                name="transition_lease_only_while_open",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.workspace_id}"
