"""Runs and their execution records.

The log (``run_event``) is append-only, held by triggers, and partitioned by run number; everything
else here is derived from it or says where it stands. Migration 0001 makes the partitioned table.
"""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from controlplane.database.ids import OWNER_MAX_LENGTH, IdOrder, uuid7
from controlplane.work.leases import Fence, LeasedQuerySet, LeasedRow
from workspaces.models import ERROR_CODE_MAX_LENGTH

PARTITION_RUNS = 1000
"""How many run numbers one partition of ``run_event`` holds."""


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
    reported_diff = models.TextField(blank=True, help_text="Of a run that is not recorded.")
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


class RunHead(models.Model):
    """Where the record of a run stands; locked by whoever appends to it.

    A record is written by one *source* after the other: the build, then each container's spool. A
    source numbers its events 1..n and its processes 1..m; in the run they continue from
    ``source_base`` and ``process_base``. For all but boot runs there is one source and both are 0.
    """

    run_number = models.BigIntegerField(primary_key=True)
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH, help_text="That of the run.")
    source_id = models.CharField(max_length=64, blank=True)
    source_base = models.BigIntegerField(default=0)
    process_base = models.IntegerField(default=0)
    source_ended = models.BooleanField(
        default=True, help_text="The present source has told its end in order."
    )
    past_sources = ArrayField(
        models.CharField(max_length=64),
        default=list,
        help_text="Sources that others followed: what they still send is refused.",
    )
    last_sequence = models.BigIntegerField(default=0)
    event_count = models.BigIntegerField(default=0)
    process_count = models.IntegerField(default=0)
    stream_bytes = models.JSONField(
        default=dict,
        help_text='Where each stream ends as far as is known: {"process/stream": bytes}.',
    )
    loss_count = models.IntegerField(default=0)
    coverage = models.JSONField(default=dict)
    stored_bytes = models.BigIntegerField(
        default=0, help_text="What its events take in the log, with their headers."
    )
    chain_head = models.BinaryField(default=bytes)
    sealed_at = models.DateTimeField(null=True)
    seal = models.BinaryField(null=True, help_text="What was signed, as canonical JSON.")
    signature = models.BinaryField(null=True)
    key_id = models.CharField(max_length=32, blank=True)
    public_key = models.BinaryField(null=True, help_text="Of the key that signed.")
    removed_at = models.DateTimeField(
        null=True, help_text="When retention removed the record; its seal stays."
    )
    removed_bytes = models.BigIntegerField(
        null=True, help_text="Bytes of meta and body that were removed with it."
    )

    class Meta:
        db_table = "run_head"
        indexes = [
            models.Index(
                fields=["owner_user_id"],
                name="head_going_on",
                condition=Q(sealed_at__isnull=True),
            )
        ]

    def __str__(self) -> str:
        return f"head of run {self.run_number} at {self.last_sequence}"


class RunOwner(models.Model):
    """What the records of one owner take that are sealed and not removed.

    Written with the seal and with the removal; ``runs.record.room`` adds those that go on.
    """

    owner_user_id = models.CharField(primary_key=True, max_length=OWNER_MAX_LENGTH)
    sealed_bytes = models.BigIntegerField()

    class Meta:
        db_table = "run_owner"

    def __str__(self) -> str:
        return f"{self.sealed_bytes} bytes of {self.owner_user_id}"


class RunEvent(models.Model):
    """One event of the log. Never updated, never deleted but by the retention command.

    ``link`` is the first 8 bytes of the chain's head after this event. Read in bulk with SQL of its
    own (``runs.record.reading``); this model is for single events and the admin.
    """

    pk = models.CompositePrimaryKey("run_number", "sequence")
    run_number = models.BigIntegerField()
    sequence = models.BigIntegerField()
    kind = models.SmallIntegerField()
    process_number = models.IntegerField()
    stream = models.SmallIntegerField()
    stream_offset = models.BigIntegerField()
    length = models.IntegerField()
    wall_us = models.BigIntegerField()
    monotonic_ns = models.BigIntegerField()
    method = models.SmallIntegerField()
    confidence = models.SmallIntegerField()
    link = models.BinaryField()
    meta = models.BinaryField()
    body = models.BinaryField()

    class Meta:
        managed = False
        db_table = "run_event"

    def __str__(self) -> str:
        return f"event {self.sequence} of run {self.run_number}"


class RunCheckpoint(models.Model):
    """The chain's head after one batch; at most one for each batch that was committed."""

    pk = models.CompositePrimaryKey("run_number", "sequence")
    run_number = models.BigIntegerField()
    sequence = models.BigIntegerField()
    chain_head = models.BinaryField()
    ingested_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "run_checkpoint"

    def __str__(self) -> str:
        return f"checkpoint of run {self.run_number} at {self.sequence}"


class RunProcess(models.Model):
    """One process of a run, as its events tell of it."""

    pk = models.CompositePrimaryKey("run_number", "process_number")
    run_number = models.BigIntegerField()
    process_number = models.IntegerField()
    parent_number = models.IntegerField(null=True)
    leader = models.BooleanField(default=False)
    pid = models.BigIntegerField(null=True)
    argv = ArrayField(models.TextField(), default=list)
    cwd = models.TextField(blank=True)
    name = models.TextField(blank=True, help_text="What it is in the run: a step's name, say.")
    streams = ArrayField(models.SmallIntegerField(), default=list)
    started_us = models.BigIntegerField(null=True)
    ended_us = models.BigIntegerField(null=True)
    exit_code = models.IntegerField(null=True)
    exit_signal = models.CharField(max_length=16, blank=True)
    exit_reason = models.CharField(max_length=16, blank=True)

    class Meta:
        db_table = "run_process"

    def __str__(self) -> str:
        return f"process {self.process_number} of run {self.run_number}"


class RunLoss(models.Model):
    """Something the record does not hold, with its reason. ``position`` counts from 1."""

    class Kind(models.TextChoices):
        """What kind of hole."""

        DROPPED_EVENT = "dropped_event"
        SEQUENCE_GAP = "sequence_gap"
        WATCH_OVERFLOW = "watch_overflow"
        EARLY_CLOSE = "early_close"

    pk = models.CompositePrimaryKey("run_number", "position")
    run_number = models.BigIntegerField()
    position = models.IntegerField()
    kind = models.CharField(max_length=16, choices=Kind.choices)
    from_sequence = models.BigIntegerField(null=True)
    to_sequence = models.BigIntegerField(null=True)
    process_number = models.IntegerField(null=True)
    stream = models.SmallIntegerField(null=True)
    from_offset = models.BigIntegerField(null=True)
    to_offset = models.BigIntegerField(null=True, help_text="Exclusive; null: not known.")
    count = models.BigIntegerField(null=True, help_text="Events or bytes; null: not known.")
    reason = models.TextField(blank=True)
    detected_via = models.CharField(max_length=16, help_text="marker or gap")
    detected_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "run_loss"
        verbose_name_plural = "run losses"

    def __str__(self) -> str:
        return f"{self.kind} in run {self.run_number}"


class RunChange(models.Model):
    """One path that differs between the start and the end of a run."""

    pk = models.CompositePrimaryKey("run_number", "position")
    run_number = models.BigIntegerField()
    position = models.IntegerField()
    path = models.BinaryField(help_text="The path's bytes, relative to the repository.")
    old_path = models.BinaryField(null=True)
    change = models.CharField(max_length=16)
    binary = models.BooleanField(default=False)
    added_lines = models.BigIntegerField(null=True)
    removed_lines = models.BigIntegerField(null=True)
    size_before = models.BigIntegerField(null=True)
    size_after = models.BigIntegerField(null=True)
    mode_before = models.CharField(max_length=6, blank=True)
    mode_after = models.CharField(max_length=6, blank=True)
    patch = models.BinaryField(default=bytes)
    patch_truncated = models.BooleanField(default=False)

    class Meta:
        db_table = "run_change"

    def __str__(self) -> str:
        return f"{self.change} {bytes(self.path)!r} in run {self.run_number}"
