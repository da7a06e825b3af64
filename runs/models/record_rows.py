"""The record of a run: the head, the log and what is derived from it.

The log (``run_event``) is append-only, held by triggers, and partitioned by run number; everything
else here is derived from it or says where it stands. Migration 0001 makes the partitioned table.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from controlplane.database.ids import OWNER_MAX_LENGTH

PARTITION_RUNS = 1000
"""How many run numbers one partition of ``run_event`` holds."""


class RunHead(models.Model):
    """Where the record of a run stands; locked by whoever appends to it.

    A record is written by one *source* after the other: the build, then each container's spool. A
    source numbers its events 1..n and its processes 1..m; in the run they continue from
    ``source_base`` and ``process_base``. For all but boot runs there is one source and both are 0.
    """

    run_number = models.BigIntegerField(primary_key=True)
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH, help_text="The owner of the run.")
    source_id = models.CharField(max_length=64, blank=True)
    source_base = models.BigIntegerField(default=0)
    process_base = models.IntegerField(default=0)
    source_ended = models.BooleanField(
        default=True, help_text="The current source has reported its end."
    )
    past_sources = ArrayField(
        models.CharField(max_length=64),
        default=list,
        help_text="Earlier sources: what they still send is refused.",
    )
    last_sequence = models.BigIntegerField(default=0)
    event_count = models.BigIntegerField(default=0)
    process_count = models.IntegerField(default=0)
    stream_bytes = models.JSONField(
        default=dict,
        help_text='Where each stream ends, as far as known: {"process/stream": bytes}.',
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
    name = models.TextField(blank=True, help_text="What it is in the run, such as a step's name.")
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
