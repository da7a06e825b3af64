"""Build jobs and their leases, remembered requests, and the workers that are alive."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import models, transaction
from django.db.models import Exists, F, OuterRef, Q, Subquery
from django.db.models.functions import Now

from builds.intents import Intent, IntentFence, IntentLostError
from builds.packages.models import Package, PackageIndex, PackageOverride
from controlplane.ids import OWNER_MAX_LENGTH, uuid7
from workspaces.models import ERROR_CODE_MAX_LENGTH, RuntimeInstance

__all__ = [
    "BuildJob",
    "Fence",
    "Intent",
    "IntentFence",
    "IntentLostError",
    "LeaseLostError",
    "Package",
    "PackageIndex",
    "PackageOverride",
    "SandboxRequest",
    "SourceReference",
    "Worker",
]


class LeaseLostError(Exception):
    """The job is no longer this worker's: another one claimed it, or it was cancelled."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The claim of one worker on one job.

    ``attempt_count`` rises with every claim, so a worker that slept through the loss of its lease
    matches no row any more: each write after the claim filters on all three.
    """

    job_id: uuid.UUID
    worker_id: str
    attempt_count: int


def _lost(fence: Fence) -> LeaseLostError:
    return LeaseLostError(f"job {fence.job_id} is not held by {fence.worker_id} any more")


class BuildJobQuerySet(models.QuerySet["BuildJob"]):
    """The claim, the lease and the transitions of build jobs. Database time only."""

    def held_by(self, fence: Fence) -> BuildJobQuerySet:
        """Keep the job while ``fence`` is its present claim."""
        return self.filter(
            pk=fence.job_id, worker_id=fence.worker_id, attempt_count=fence.attempt_count
        )

    def claim(self, job_id: uuid.UUID, *, worker_id: str, lease: timedelta) -> BuildJob | None:
        """Claim one job for ``lease``; None when it is not claimable or another worker is at it.

        Claimable is what is queued, or holds a lease that expired: a job whose image was published
        but not launched keeps its lease too, and is then claimed to be launched.
        """
        with transaction.atomic():
            job = (
                self.select_for_update(skip_locked=True, of=("self",))
                .select_related("attempt")
                .filter(
                    Q(status=BuildJob.Status.QUEUED) | Q(lease_expires_at__lte=Now()), pk=job_id
                )
                .first()
            )
            if job is None:
                return None
            status = BuildJob.Status.RUNNING if job.status == BuildJob.Status.QUEUED else job.status
            self.filter(pk=job.pk).update(
                status=status,
                worker_id=worker_id,
                attempt_count=F("attempt_count") + 1,
                claimed_at=Now(),
                lease_expires_at=Now() + lease,
                started_at=models.functions.Coalesce("started_at", Now()),
                updated_at=Now(),
            )
        job.status, job.worker_id = status, worker_id
        job.attempt_count += 1
        return job

    def renew(self, fence: Fence, *, lease: timedelta) -> bool:
        """Prolong the lease; False when it is lost, and the work has to stop.

        Does not wait for a row that is being written, which raises ``OperationalError``: the
        heartbeat comes after, and the next renewal is soon.
        """
        with transaction.atomic():
            held = self.held_by(fence).filter(lease_expires_at__isnull=False)
            if held.select_for_update(nowait=True).first() is None:
                return False
            return bool(held.update(lease_expires_at=Now() + lease))

    def release_strays(
        self, worker_id: str, held: Collection[uuid.UUID], *, older_than: timedelta
    ) -> int:
        """End the leases of a worker on jobs other than those it holds; return how many.

        Claims younger than ``older_than`` are left: ``held`` may have been read before them.
        """
        return (
            self.filter(worker_id=worker_id, lease_expires_at__gt=Now())
            .filter(claimed_at__lt=Now() - older_than)
            .exclude(pk__in=held)
            .update(lease_expires_at=Now())
        )

    def give_back(self, fence: Fence) -> bool:
        """End the lease of a job that its worker was told to drop; this try does not count."""
        return bool(
            self.held_by(fence)
            .filter(lease_expires_at__isnull=False)
            .update(lease_expires_at=Now(), max_attempts=F("max_attempts") + 1)
        )

    def let_go(self, fence: Fence) -> None:
        """Tell that the worker of a job that was cancelled has stopped all work on it."""
        cancelled = self.held_by(fence).filter(status=BuildJob.Status.CANCELLED)
        cancelled.update(released_at=Now())

    def at_work_though_cancelled(self, *, stale: timedelta, since: timedelta) -> BuildJobQuerySet:
        """Keep cancelled jobs whose worker lives and has not let go, for ``since`` at the most."""
        alive = Worker.objects.alive(stale=stale).filter(worker_id=OuterRef("worker_id"))
        return self.filter(
            Exists(alive),
            status=BuildJob.Status.CANCELLED,
            released_at__isnull=True,
            finished_at__gt=Now() - since,
        ).exclude(worker_id="")

    def present(self, fence: Fence) -> BuildJobQuerySet:
        """Keep the job while its holder may write to it: its claim stands, nobody cancelled it."""
        return self.held_by(fence).exclude(status=BuildJob.Status.CANCELLED)

    def require(self, fence: Fence) -> None:
        """Raise ``LeaseLostError`` when the claim is not the present one any more."""
        if not self.present(fence).exists():
            raise _lost(fence)

    def lock(self, fence: Fence) -> None:
        """Lock the job for writes to other rows in the present transaction.

        Raises ``LeaseLostError`` when the claim is not the present one, or the job was cancelled.
        """
        if not list(self.present(fence).select_for_update().values_list("pk")):
            raise _lost(fence)

    def write(self, fence: Fence, **values: Any) -> None:
        """Write to the job and lock it, in the present transaction.

        Raises ``LeaseLostError`` when the claim is not the present one, or the job was cancelled.
        """
        if not self.present(fence).update(updated_at=Now(), **values):
            raise _lost(fence)

    def with_image(self) -> BuildJobQuerySet:
        """Keep the jobs whose image was published and not removed from the registry since."""
        return self.filter(image_removed_at__isnull=True).exclude(published_digest="")

    def needing_their_image(self) -> BuildJobQuerySet:
        """Keep the jobs whose published image is launched, runs, or may be started again.

        The latter is the latest image of the latest sandbox of a workspace that is not deleted.
        """
        of_sandbox = BuildJob.objects.filter(attempt__sandbox=OuterRef("attempt__sandbox"))
        newest = of_sandbox.exclude(published_digest="").order_by("-pk").values("pk")[:1]
        return self.exclude(published_digest="").filter(
            Q(lease_expires_at__isnull=False)
            | Q(attempt__runtime__status__in=RuntimeInstance.LIVE)
            | Q(
                attempt__workspace__deleted_at__isnull=True,
                attempt__workspace__latest_sandbox=F("attempt__sandbox"),
                pk=Subquery(newest),
            )
        )

    def unneeded_images(self) -> BuildJobQuerySet:
        """Keep the jobs whose image no job needs that has published the same one there."""
        needing = BuildJob.objects.needing_their_image().filter(
            repository=OuterRef("repository"), published_digest=OuterRef("published_digest")
        )
        return self.filter(~Exists(needing))

    def overdue(self, *, overdue: timedelta) -> BuildJobQuerySet:
        """Keep queued jobs whose message should have arrived long ago, oldest first."""
        return self.filter(status=BuildJob.Status.QUEUED, queued_at__lte=Now() - overdue).order_by(
            "queued_at"
        )

    def expired(self) -> BuildJobQuerySet:
        """Keep jobs whose lease ran out, oldest first."""
        return self.filter(lease_expires_at__lte=Now()).order_by("lease_expires_at")

    def expire_leases_of_dead_workers(self, *, stale: timedelta) -> int:
        """End the leases of workers that stopped beating ``stale`` ago; return how many.

        Passes over rows that are being written, so that a worker that stands still inside a
        transaction does not keep the sweepers of all others waiting.
        """
        alive = Worker.objects.alive(stale=stale).filter(worker_id=OuterRef("worker_id"))
        with transaction.atomic():
            dead = list(
                self.filter(lease_expires_at__gt=Now())
                .filter(~Exists(alive))
                .select_for_update(skip_locked=True, of=("self",))
                .values_list("pk", flat=True)
            )
            return self.filter(pk__in=dead).update(lease_expires_at=Now()) if dead else 0


class BuildJob(models.Model):
    """One job of a build worker: build the image, publish it, launch the runtime.

    ::

        queued → running → succeeded          (published; the lease stays until it is launched)
           │         │          └───→ failed  (the launch failed)
           │         ├──────────────→ failed
           └─────────┴──────────────→ cancelled

    ``running``, and ``succeeded`` while launching, hold a lease. A job is claimed when it is
    ``queued`` or its lease expired; ``attempt_count`` is the fencing token (see :class:`Fence`).
    """

    class Status(models.TextChoices):
        """The specification's states of a build job, and ``cancelled``."""

        QUEUED = "queued"
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"

    TERMINAL = {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    attempt = models.ForeignKey("workspaces.Attempt", on_delete=models.CASCADE, related_name="jobs")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.QUEUED)
    registry_id = models.CharField(max_length=255)
    repository = models.CharField(max_length=255)
    tag = models.CharField(max_length=128)
    attempt_count = models.PositiveIntegerField(default=0)
    max_attempts = models.PositiveIntegerField()
    worker_id = models.CharField(max_length=255, blank=True)
    queued_at = models.DateTimeField(db_default=Now())
    claimed_at = models.DateTimeField(null=True)
    lease_expires_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(
        null=True, help_text="When the worker of a cancelled job had let go of all of it."
    )
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    plan_hash = models.CharField(max_length=64, blank=True)
    reused = models.BooleanField(default=False, help_text="An unchanged plan was not built again.")
    published_reference = models.CharField(max_length=1024, blank=True)
    published_digest_reference = models.CharField(max_length=1024, blank=True)
    published_digest = models.CharField(max_length=128, blank=True)
    image_removed_at = models.DateTimeField(
        null=True, help_text="When the image was removed from the registry, as nobody needed it."
    )
    error_code = models.CharField(max_length=ERROR_CODE_MAX_LENGTH, blank=True)
    error_message = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = BuildJobQuerySet.as_manager()

    class Meta:
        indexes = [
            # The sweeper asks these two questions separately: one OR of both reads every row.
            models.Index(fields=["queued_at"], name="job_queued", condition=Q(status="queued")),
            models.Index(
                fields=["lease_expires_at"],
                name="job_leased",
                condition=Q(lease_expires_at__isnull=False),
            ),
            models.Index(
                fields=["plan_hash", "-id"],
                name="job_plan",
                condition=Q(status="succeeded") & ~Q(plan_hash=""),
            ),
            models.Index(
                fields=["published_digest", "repository"],
                name="job_image",
                condition=Q(image_removed_at__isnull=True) & ~Q(published_digest=""),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=~Q(status="running")
                | (
                    Q(lease_expires_at__isnull=False)
                    & Q(claimed_at__isnull=False)
                    & ~Q(worker_id="")
                ),
                name="job_running_has_lease",
            ),
            models.CheckConstraint(
                condition=Q(lease_expires_at__isnull=True) | Q(status__in=["running", "succeeded"]),
                name="job_lease_only_at_work",
            ),
            models.CheckConstraint(
                condition=Q(status__in=["queued", "running"], finished_at__isnull=True)
                | Q(status__in=["succeeded", "failed", "cancelled"], finished_at__isnull=False),
                name="job_finished_when_final",
            ),
            models.CheckConstraint(
                condition=~Q(status="failed") | ~Q(error_message=""), name="job_failed_has_message"
            ),
            models.CheckConstraint(
                condition=~Q(status="succeeded") | ~Q(published_digest=""),
                name="job_succeeded_has_digest",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag} ({self.status})"

    @property
    def fence(self) -> Fence:
        """The claim this row shows."""
        return Fence(self.pk, self.worker_id, self.attempt_count)


class SandboxRequest(models.Model):
    """The first answer to a request that carried an ``idempotency-key``.

    Scoped to the owner; ``request_hash`` tells the same request from another one under that key.
    """

    id = models.BigAutoField(primary_key=True)
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH)
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64)
    sandbox = models.ForeignKey("workspaces.Sandbox", on_delete=models.CASCADE, related_name="+")
    answer = models.JSONField()
    publish_failed = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner_user_id", "key"], name="request_owner_key")
        ]

    def __str__(self) -> str:
        return f"{self.owner_user_id}: {self.key}"


class SourceReference(models.Model):
    """Says that a source of a sandbox is a selected repository, which a token is needed for.

    The blueprint has its plain URL only, so that nobody can write a reference into one.
    """

    sandbox = models.ForeignKey(
        "workspaces.Sandbox", on_delete=models.CASCADE, related_name="source_references"
    )
    source_id = models.CharField(max_length=64, help_text="The source's id in the blueprint.")
    installation_repository = models.ForeignKey(
        "scm.InstallationRepository", on_delete=models.PROTECT, related_name="+"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["sandbox", "source_id"], name="source_reference_once")
        ]

    def __str__(self) -> str:
        return f"{self.source_id}: {self.installation_repository_id}"


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Heartbeats."""

    def alive(self, *, stale: timedelta) -> WorkerQuerySet:
        """Keep the workers that were seen within ``stale``."""
        return self.filter(seen_at__gt=Now() - stale)

    def beat(
        self,
        worker_id: str,
        *,
        hostname: str,
        pid: int,
        prefetch: int,
        draining: bool = False,
        engine_id: str = "",
    ) -> None:
        """Write the heartbeat of a worker; the first one registers it.

        ``engine_id`` is what the engine that it works with calls itself, as far as it has answered.
        """
        self.update_or_create(
            worker_id=worker_id,
            defaults={"seen_at": Now(), "draining": draining, "engine_id": engine_id},
            create_defaults={
                "hostname": hostname,
                "pid": pid,
                "prefetch": prefetch,
                "engine_id": engine_id,
                "seen_at": Now(),
            },
        )


class Worker(models.Model):
    """A build worker's heartbeat. A worker that ends in order takes its row along."""

    worker_id = models.CharField(primary_key=True, max_length=255)
    hostname = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    prefetch = models.PositiveIntegerField()
    engine_id = models.CharField(
        max_length=128,
        blank=True,
        default="",
        db_default="",
        help_text="The engine it works with; empty while that has never answered it.",
    )
    draining = models.BooleanField(default=False)
    started_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField()

    objects = WorkerQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["seen_at"], name="worker_seen")]

    def __str__(self) -> str:
        return self.worker_id
