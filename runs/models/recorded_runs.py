"""Runs, the requests that made them, and input for their programs that nobody has handed over."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from controlplane.database.ids import OWNER_MAX_LENGTH, IdOrder, uuid7
from controlplane.work.leases import Fence, LeasedQuerySet, LeasedRow
from workspaces.models import ERROR_CODE_MAX_LENGTH


class NextRunNumber(models.Func):
    """The next number of the sequence that migration 0001 makes."""

    template = "nextval('run_number_seq')"
    output_field = models.BigIntegerField()


class RunQuerySet(LeasedQuerySet["Run"]):
    """Questions and transitions of runs. Database time only."""

    def owned_by(self, owner_user_id: str | None) -> RunQuerySet:
        """Keep the rows of one owner; of everybody when the caller names none."""
        return self if owner_user_id is None else self.filter(owner_user_id=owner_user_id)

    def open(self) -> RunQuerySet:
        """Keep the runs that have not ended."""
        return self.exclude(status__in=Run.TERMINAL)

    def writable(self, fence: Fence) -> RunQuerySet:
        """Keep the run while its holder may write to it: it has a lease, and it is this one."""
        return self.held_by(fence).filter(lease_expires_at__isnull=False)

    def settle(self, status: Run.Status, **values: Any) -> int:
        """Move runs that are not final to the final ``status``; return how many."""
        return self.exclude(status__in=Run.TERMINAL).update(
            status=status,
            finished_at=Now(),
            updated_at=Now(),
            worker_id="",
            lease_expires_at=None,
            sealed_input=None,
            **values,
        )


class Run(LeasedRow):
    """One recorded piece of work in a workspace.

    ::

        queued → running → completed | failed | cancelled       (queued → failed | cancelled)

    Final states are final. While a worker records (and for a one-shot run: has started) it, the
    run holds a lease; ``claim_count`` is the fencing token.
    """

    class Mode(models.TextChoices):
        """What kind of work: a sandbox's boot, one command, or a session somebody sits at."""

        BOOT = "boot"
        ONE_SHOT = "one-shot"
        INTERACTIVE = "interactive"

    class Status(models.TextChoices):
        """The states of a run."""

        QUEUED = "queued"
        RUNNING = "running"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLED = "cancelled"

    TERMINAL = {Status.COMPLETED, Status.FAILED, Status.CANCELLED}

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    number = models.BigIntegerField(unique=True, editable=False, db_default=NextRunNumber())
    workspace = models.ForeignKey(
        "workspaces.Workspace", on_delete=models.PROTECT, related_name="runs"
    )
    attempt = models.ForeignKey(
        "workspaces.Attempt", null=True, on_delete=models.PROTECT, related_name="runs"
    )
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH)
    harness_id = models.CharField(max_length=255)
    mode = models.CharField(max_length=16, choices=Mode.choices)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.QUEUED)
    recorded = models.BooleanField(
        help_text="True: the record decides how it ended. False: the client reports it."
    )
    prompt = models.TextField(blank=True)
    command = models.JSONField(
        null=True,
        help_text="{executable, args, cwd?, env?, stdin?} as it is executed; null: it is not.",
    )
    sealed_input = models.BinaryField(
        null=True, editable=False, help_text="Its env and stdin, until it has started."
    )
    time_limit_ms = models.BigIntegerField(null=True)
    exit_code = models.IntegerField(null=True)
    exit_signal = models.CharField(max_length=16, blank=True)
    error_code = models.CharField(max_length=ERROR_CODE_MAX_LENGTH, blank=True)
    error_message = models.TextField(blank=True)
    reported_diff = models.TextField(blank=True, help_text="For a run that is not recorded.")
    cancel_requested_at = models.DateTimeField(null=True)
    claim_count = models.PositiveIntegerField(default=0)
    queued_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["workspace", "-id"], name="run_workspace"),
            # What a list shows that does not ask for a mode.
            models.Index(
                "owner_user_id",
                IdOrder("id").desc(),
                name="run_of_owner",
                condition=~Q(mode="boot"),
            ),
            models.Index(
                "owner_user_id",
                "status",
                IdOrder("id").desc(),
                name="run_owner_status",
                condition=~Q(mode="boot"),
            ),
            models.Index("owner_user_id", "mode", IdOrder("id").desc(), name="run_owner_mode"),
            models.Index(
                "owner_user_id",
                "mode",
                "status",
                IdOrder("id").desc(),
                name="run_owner_mode_status",
            ),
            models.Index(
                fields=["id"],
                name="run_open",
                condition=Q(status__in=["queued", "running"]),
            ),
            models.Index(
                fields=["lease_expires_at"],
                name="run_leased",
                condition=Q(lease_expires_at__isnull=False),
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["attempt"], condition=Q(mode="boot"), name="run_one_boot_per_attempt"
            ),
            models.CheckConstraint(
                condition=Q(status__in=["queued", "running"], finished_at__isnull=True)
                | Q(status__in=["completed", "failed", "cancelled"], finished_at__isnull=False),
                name="run_finished_when_final",
            ),
            models.CheckConstraint(
                condition=Q(lease_expires_at__isnull=True) | Q(status__in=["queued", "running"]),
                name="run_lease_only_while_open",
            ),
            models.CheckConstraint(
                condition=Q(sealed_input__isnull=True) | Q(status__in=["queued", "running"]),
                name="run_input_erased_when_final",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.mode} run {self.id} ({self.status})"


class RunRequest(models.Model):
    """The run that a request with an ``idempotency-key`` has made.

    Scoped to the owner; ``request_hash`` tells the same request from another one under that key.
    """

    id = models.BigAutoField(primary_key=True)
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH)
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner_user_id", "key"], name="run_request_owner_key")
        ]

    def __str__(self) -> str:
        return f"{self.owner_user_id}: {self.key}"


class RunInput(models.Model):
    """Something for the program of a run that nobody has handed over yet; then its row goes.

    In the order of ``position``. ``detail`` is what the agent is told: bytes with their offset in
    the input, the end of the input, a size of the terminal, or a signal.
    """

    pk = models.CompositePrimaryKey("run_id", "position")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    position = models.BigIntegerField()
    size = models.IntegerField(help_text="How many bytes for the program it holds.")
    detail = models.JSONField()

    class Meta:
        db_table = "run_input"

    def __str__(self) -> str:
        return f"input {self.position} of run {self.run_id}"


class RunInputHead(models.Model):
    """How much input a run was given so far; locked by whoever gives it more."""

    run = models.OneToOneField(Run, primary_key=True, on_delete=models.CASCADE, related_name="+")
    last_position = models.BigIntegerField(default=0)
    received = models.BigIntegerField(help_text="Bytes from the beginning of the input.")
    ended = models.BooleanField(default=False)

    class Meta:
        db_table = "run_input_head"

    def __str__(self) -> str:
        return f"{self.received} bytes for run {self.run_id}"
