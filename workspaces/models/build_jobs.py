"""Build jobs and their leases, remembered requests, and references to selected repositories."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.contrib.postgres.indexes import HashIndex
from django.db import models
from django.db.models import (
    Case,
    Count,
    Exists,
    F,
    Func,
    IntegerField,
    OuterRef,
    Q,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Cast, Coalesce, Now

from controlplane.database.ids import OWNER_MAX_LENGTH, uuid7
from controlplane.work.leases import Fence, LeasedQuerySet, LeasedRow
from controlplane.work.models import Heartbeat
from workspaces.models.core import ERROR_CODE_MAX_LENGTH, RuntimeInstance, Sandbox
from workspaces.models.known_engines import Engine, takes_no_start


class _Places(Func):
    """The places of all jobs that wait for a start, by id: read once, however many are asked for.

    Those behind more jobs than given are left out.
    """

    template = """(
        SELECT jsonb_object_agg(id, place) FROM (
            SELECT id, CASE WHEN engine_name = '' THEN row_number() OVER earlier
                ELSE row_number() OVER of_engine
                    + count(*) FILTER (WHERE engine_name = '') OVER earlier END AS place
            FROM workspaces_buildjob WHERE status = 'queued' AND lane = 'start'
            WINDOW earlier AS (ORDER BY queued_at, id),
                of_engine AS (PARTITION BY engine_name ORDER BY queued_at, id)
        ) AS waiting WHERE place <= %(expressions)s)"""
    output_field = models.JSONField()


class BuildJobQuerySet(LeasedQuerySet["BuildJob"]):
    """The leases and the transitions of build jobs. Database time only."""

    def of_engine(self, name: str) -> BuildJobQuerySet:
        """Keep the jobs that a worker of the engine ``name`` may claim; "": of any engine.

        A job whose container may exist is of the engine where that is, and of no other one. Where
        there are several, no worker claims a job before it was placed, as its volumes may be on
        another one. While the engine takes nothing new, what is queued waits.
        """
        if not name:
            return self
        queued, built = Q(status=BuildJob.Status.QUEUED), Q(status=BuildJob.Status.SUCCEEDED)
        others = Exists(Engine.objects.known().exclude(pk=name))
        ours = Q(engine_name=name) | Q(engine_name="") & (built | ~Q(others))
        return self.filter(ours).exclude(queued, takes_no_start(name))

    def claim(
        self, job_id: uuid.UUID, *, worker_id: str, lease: timedelta, engine: str = ""
    ) -> BuildJob | None:
        """Acquire one job for ``lease``; None when it is not claimable or another worker has it.

        Claimable is what is queued, or holds a lease that expired: a job whose image was published
        but not launched keeps its lease too, and is then claimed to be launched. From then on it is
        of ``engine``, which the worker serves.
        """
        queued = Q(status=BuildJob.Status.QUEUED)
        claimable = self.of_engine(engine).filter(
            queued | Q(lease_expires_at__lte=Now()), pk=job_id
        )
        placed = {"engine_name": engine} if engine else {}
        return claimable.select_related("attempt__sandbox", "attempt__workspace").acquire(
            worker_id=worker_id,
            lease=lease,
            status=Case(When(queued, then=Value(BuildJob.Status.RUNNING)), default=F("status")),
            started_at=Coalesce("started_at", Now()),
            updated_at=Now(),
            **placed,
        )

    def with_jobs_ahead(self, *, at_most: int) -> BuildJobQuerySet:
        """Add ``jobs_ahead`` to queued jobs: None for those with more than ``at_most``.

        Ahead of a job that is placed are those of its engine and of none yet, of any other job all.
        Place and status are of one statement: a job that is claimed meanwhile is not queued with
        no place.
        """
        place = Func(
            _Places(Value(at_most + 1)),
            Cast("pk", models.TextField()),
            template="(%(expressions)s)::integer",
            arg_joiner=" ->> ",
            output_field=IntegerField(),
        )
        ahead = {"jobs_ahead": Case(When(status=BuildJob.Status.QUEUED, then=place - 1))}
        return self.annotate(**ahead)

    def give_back(self, fence: Fence) -> int:
        """Release a job that its worker was told to drop; this try does not count."""
        return self.release([fence], max_attempts=F("max_attempts") + 1)

    def wait_for_build_slot(self, fence: Fence) -> bool:
        """Queue a job for a build slot, which this try does not count; False: the lease is lost."""
        waiting = self.writable(fence).filter(status=BuildJob.Status.RUNNING)
        return bool(
            waiting.update(
                status=BuildJob.Status.QUEUED,
                lane=BuildJob.Lane.BUILD,
                worker_id="",
                lease_expires_at=None,
                max_attempts=F("max_attempts") + 1,
                updated_at=Now(),
            )
        )

    def waiting_for_build_slot(self) -> BuildJobQuerySet:
        """Keep the queued jobs that need a build slot."""
        return self.filter(status=BuildJob.Status.QUEUED, lane=BuildJob.Lane.BUILD)

    def claim_build(self, *, worker_id: str, lease: timedelta, engine: str = "") -> BuildJob | None:
        """Acquire a job that waits for a build slot, for whoever has one; None when none waits.

        The owner with the fewest builds under way comes first, and of theirs the oldest.
        """
        building = (
            BuildJob.objects.filter(
                lease_expires_at__isnull=False,
                status=BuildJob.Status.RUNNING,
                lane=BuildJob.Lane.BUILD,
                attempt__workspace__owner_user_id=OuterRef("attempt__workspace__owner_user_id"),
            )
            .order_by()
            .values("lane")
            .annotate(number=Count("pk"))
            .values("number")
        )
        placed = {"engine_name": engine} if engine else {}
        ours = self.of_engine(engine).waiting_for_build_slot()
        waiting = ours.annotate(building=Coalesce(Subquery(building), 0))
        return (
            waiting.select_related("attempt__sandbox", "attempt__workspace")
            .order_by("building", "queued_at")
            .acquire(
                worker_id=worker_id,
                lease=lease,
                status=BuildJob.Status.RUNNING,
                updated_at=Now(),
                **placed,
            )
        )

    def drop(self, fence: Fence) -> None:
        """Write that the worker of a cancelled job has stopped all work on it."""
        cancelled = self.held_by(fence).filter(status=BuildJob.Status.CANCELLED)
        cancelled.update(released_at=Now())

    def still_dropping(self, *, stale: timedelta, since: timedelta) -> BuildJobQuerySet:
        """Keep cancelled jobs that a live worker has not dropped yet, for at most ``since``."""
        alive = Heartbeat.objects.alive(stale=stale).filter(worker_id=OuterRef("worker_id"))
        return self.filter(
            Exists(alive),
            status=BuildJob.Status.CANCELLED,
            released_at__isnull=True,
            finished_at__gt=Now() - since,
        ).exclude(worker_id="")

    def writable(self, fence: Fence) -> BuildJobQuerySet:
        """Keep the job while its holder may write to it: it has the lease, nobody cancelled it."""
        return self.held_by(fence).exclude(status=BuildJob.Status.CANCELLED)

    def write(self, fence: Fence, **values: Any) -> None:
        """Write to the job and so lock it; raise ``LeaseLost`` when it is lost or cancelled."""
        super().write(fence, updated_at=Now(), **values)

    def with_image(self) -> BuildJobQuerySet:
        """Keep the jobs whose image was published and not removed from the registry since."""
        return self.filter(image_removed_at__isnull=True).exclude(published_digest="")

    def latest_published(self, sandbox: Sandbox) -> BuildJob | None:
        """Return the latest job that has published an image of ``sandbox``; None if none has."""
        published = self.filter(attempt__sandbox=sandbox).exclude(published_digest="")
        return published.order_by("-pk").first()

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

    def overdue(self, *, overdue: timedelta, engine: str = "") -> BuildJobQuerySet:
        """Keep queued jobs whose message should have arrived long ago, oldest first.

        Those that wait for a build slot have had theirs, and so have those that were placed on
        ``engine``: a worker of any engine places a job when it gets the message.
        """
        due = Q(queued_at__lte=Now() - overdue)
        if engine:
            due |= Q(engine_name=engine)
        waiting = self.filter(due, status=BuildJob.Status.QUEUED, lane=BuildJob.Lane.START)
        return waiting.order_by("queued_at")


class BuildJob(LeasedRow):
    """One job of a build worker: build the image, publish it, launch the runtime.

    ::

        queued → running → succeeded          (published; the lease stays until it is launched)
           │         │          └───→ failed  (the launch failed)
           │         ├──────────────→ failed
           └─────────┴──────────────→ cancelled

    ``running``, and ``succeeded`` while launching, hold a lease. A job is claimed when it is
    ``queued`` or its lease expired; ``attempt_count`` is the fencing token (see :class:`Fence`).
    A job that has to build and finds no build slot is ``queued`` again, in the lane ``build``.
    """

    class Status(models.TextChoices):
        """The specification's states of a build job, and ``cancelled``."""

        QUEUED = "queued"
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"

    class Lane(models.TextChoices):
        """Which slot of a worker a job needs."""

        START = "start"
        BUILD = "build"

    TERMINAL = {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}
    FENCE = "attempt_count"

    jobs_ahead: int | None = None
    """Set by ``with_jobs_ahead``."""
    held_back: bool = False
    """Whether no engine takes starts; set by reads (``lifecycle.attempt_states``)."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    attempt = models.ForeignKey("workspaces.Attempt", on_delete=models.CASCADE, related_name="jobs")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.QUEUED)
    lane = models.CharField(
        max_length=8,
        choices=Lane.choices,
        default=Lane.START,
        help_text="build: an image has to be built, which needs a build slot.",
    )
    registry_id = models.CharField(max_length=255)
    repository = models.CharField(max_length=255)
    tag = models.CharField(max_length=128)
    engine_name = models.CharField(
        max_length=63,
        blank=True,
        default="",
        db_default="",
        help_text="The engine that it is placed on; empty until it is placed or claimed.",
    )
    attempt_count = models.PositiveIntegerField(default=0)
    max_attempts = models.PositiveIntegerField()
    queued_at = models.DateTimeField(db_default=Now())
    released_at = models.DateTimeField(
        null=True, help_text="When the worker of a cancelled job had released all of it."
    )
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    plan_hash = models.CharField(max_length=64, blank=True)
    reused = models.BooleanField(default=False, help_text="An unchanged plan was not built again.")
    published_reference = models.CharField(max_length=1024, blank=True)
    published_digest_reference = models.CharField(max_length=1024, blank=True)
    published_digest = models.CharField(max_length=128, blank=True)
    image_removed_at = models.DateTimeField(
        null=True, help_text="When the image was removed from the registry as no longer needed."
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
            # An engine may have an image that the registry does not have any more.
            HashIndex(
                fields=["published_digest"], name="job_digest", condition=~Q(published_digest="")
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
