"""What owners want of a workspace that exists: that it stops, or that it is deleted.

An intent is stored before anything is done, and an attendant of any build worker fulfils it (see
``builds.fulfilment``). A workspace has one open intent at the most: a stop may become a delete, and
nothing takes a delete back.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta

from django.db import models, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Now

from controlplane.ids import OWNER_MAX_LENGTH, uuid7
from workspaces.models import ERROR_CODE_MAX_LENGTH

CHANNEL = "svc_intents"
"""Where a new intent is announced (``controlplane.announcements``)."""


class IntentLostError(Exception):
    """The intent is no longer this worker's: another one took it over, or it is fulfilled."""


@dataclass(frozen=True, slots=True)
class IntentFence:
    """The claim of one worker on one intent; ``claim_count`` rises with every claim."""

    intent_id: uuid.UUID
    worker_id: str
    claim_count: int


class IntentQuerySet(models.QuerySet["Intent"]):
    """The claim, the lease and the end of intents. Database time only."""

    def open(self) -> IntentQuerySet:
        """Keep the intents that are still to be fulfilled."""
        return self.filter(fulfilled_at__isnull=True)

    def claim_next(
        self, worker_id: str, *, alive: models.QuerySet[models.Model] | None, lease: timedelta
    ) -> Intent | None:
        """Claim the intent that waits longest; None when there is none.

        Claimable is what nobody holds, or a worker whose lease is over or that is not among those
        ``alive``, and that is not to wait before it is tried again. With ``alive`` None nobody is
        taken for dead.
        """
        free = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=Now())
        if alive is not None:
            free |= Q(~Exists(alive.filter(worker_id=OuterRef("worker_id"))))
        with transaction.atomic():
            intent = (
                self.open()
                .filter(free, Q(retry_at__isnull=True) | Q(retry_at__lte=Now()))
                .order_by("requested_at", "id")
                .select_for_update(skip_locked=True, of=("self",))
                .first()
            )
            if intent is None:
                return None
            self.filter(pk=intent.pk).update(
                worker_id=worker_id,
                claim_count=F("claim_count") + 1,
                lease_expires_at=Now() + lease,
                retry_at=None,
            )
        intent.worker_id = worker_id
        intent.claim_count += 1
        return intent

    def held_by(self, fence: IntentFence) -> IntentQuerySet:
        """Keep the intent while ``fence`` is its present claim."""
        return self.open().filter(
            pk=fence.intent_id, worker_id=fence.worker_id, claim_count=fence.claim_count
        )

    def renew(self, fence: IntentFence, *, lease: timedelta) -> None:
        """Prolong the lease; raise ``IntentLostError`` when the claim is not the present one."""
        if not self.held_by(fence).update(lease_expires_at=Now() + lease):
            raise IntentLostError(f"intent {fence.intent_id} is not held any more")

    def put_off(
        self, fence: IntentFence, *, after: timedelta, code: str = "", message: str = ""
    ) -> None:
        """Give the claim back, to be taken again ``after`` some time; say what is waited for."""
        self.held_by(fence).update(
            worker_id="",
            lease_expires_at=None,
            retry_at=Now() + after,
            waits_code=code,
            waits_message=message,
        )

    def give_back(self, fence: IntentFence) -> None:
        """Give the claim back, to be taken again at once."""
        self.held_by(fence).update(worker_id="", lease_expires_at=None)

    def give_back_strays(self, worker_id: str) -> int:
        """Give back what the table calls this worker's, which is at nothing; return how many.

        A claim may be committed although its answer was lost with the connection.
        """
        return self.open().filter(worker_id=worker_id).update(worker_id="", lease_expires_at=None)


class Intent(models.Model):
    """That a workspace is stopped or deleted.

    ::

        open (stop) → open (delete)
          │              │
          └──────────────┴─→ fulfilled      (the containers are gone; of a delete, the volumes too)

    While an attendant is at it, it has a lease.
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

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    workspace = models.ForeignKey(
        "workspaces.Workspace", on_delete=models.CASCADE, related_name="intents"
    )
    kind = models.CharField(max_length=16, choices=Kind.choices)
    cause = models.CharField(max_length=16, choices=Cause.choices)
    requested_by = models.CharField(max_length=OWNER_MAX_LENGTH)
    requested_at = models.DateTimeField(db_default=Now())
    worker_id = models.CharField(max_length=255, blank=True)
    claim_count = models.PositiveIntegerField(default=0)
    lease_expires_at = models.DateTimeField(null=True)
    retry_at = models.DateTimeField(null=True)
    waits_code = models.CharField(max_length=ERROR_CODE_MAX_LENGTH, blank=True)
    waits_message = models.TextField(blank=True)
    fulfilled_at = models.DateTimeField(null=True)

    objects = IntentQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["requested_at", "id"],
                name="intent_open",
                condition=Q(fulfilled_at__isnull=True),
            ),
            models.Index(fields=["workspace", "-id"], name="intent_workspace"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["workspace"],
                condition=Q(fulfilled_at__isnull=True),
                name="intent_one_open_per_workspace",
            ),
            models.CheckConstraint(
                condition=Q(lease_expires_at__isnull=True)
                | (Q(fulfilled_at__isnull=True) & ~Q(worker_id="")),
                name="intent_lease_only_while_open",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.workspace_id}"

    @property
    def fence(self) -> IntentFence:
        """The claim this row shows."""
        return IntentFence(self.pk, self.worker_id, self.claim_count)
