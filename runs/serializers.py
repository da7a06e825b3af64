"""The wire shapes of runs and of what is read of their records."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from controlplane.http.pagination import list_query
from controlplane.http.serializers import (
    IdField,
    InputSerializer,
    OutputSerializer,
    OwnedInputSerializer,
    OwnerRequiredInputSerializer,
    QuerySerializer,
    TextField,
    TimestampField,
    WholeNumberField,
)
from runs.fields import (
    KIND_NUMBERS,
    STREAM_NUMBERS,
    EnvironmentField,
    ExactTextField,
    NamesField,
    OffsetField,
    TimeLimitField,
)
from runs.models import Run, RunLoss
from runs.record.reading.export import ASCIICAST_VERSIONS
from workspaces.serializers import ReasonSerializer

ARGUMENT_MAX_BYTES = 128 * 1024 - 1
"""What Linux takes as one argument of a program, the NUL at its end aside."""
MAX_ARGUMENTS = 4_096
STDIN_MAX_BYTES = 512 * 1024
MESSAGE_MAX_BYTES = 16 * 1024
MAX_CHANGED_FILES = 20_000
TIMELINE_LIMIT, TIMELINE_MAX_LIMIT = 500, 5_000
SCROLLBACK_BYTES, SCROLLBACK_MAX_BYTES = 1024**2, 16 * 1024**2
CLIENT_MODES = [Run.Mode.ONE_SHOT.value, Run.Mode.INTERACTIVE.value]
REPORTED_CHANGES = ["added", "modified", "deleted", "renamed"]
RECORDED_CHANGES = [*REPORTED_CHANGES, "metadataChanged", "unknown"]
EXPORT_FORMATS = ["asciicast", "text", "ndjson", "in-toto", "ocsf", "otlp"]
TIMELINE_KINDS = [*KIND_NUMBERS, "unknown"]
STREAMS = list(STREAM_NUMBERS)
TOLD_STREAMS = [*STREAMS, "unknown"]

DECIMAL = {"type": "string", "pattern": "^[0-9]+$"}


@extend_schema_field(DECIMAL)
class DecimalTextField(serializers.CharField):
    """A number of 64 bits as the wire shows it; for answers only."""


@extend_schema_field({})
class AnyField(serializers.JSONField):
    """Any JSON value."""


class CommandSerializer(InputSerializer):
    """A program and its arguments, without a shell between."""

    executable = TextField(max_length=4_096, help_text="A path, or a name that is on `PATH`.")
    args = serializers.ListField(
        child=ExactTextField(max_bytes=ARGUMENT_MAX_BYTES),
        max_length=MAX_ARGUMENTS,
        required=False,
        default=list,
        help_text="Each is passed on unchanged.",
    )
    cwd = TextField(
        max_length=4_096,
        required=False,
        help_text="Working directory: absolute, or relative to the blueprint's working directory.",
    )


@extend_schema_serializer(component_name="CreateRun")
class RunRequestSerializer(OwnerRequiredInputSerializer):
    """What is to be recorded in a workspace, and perhaps executed there."""

    workspace_id = IdField()
    harness_id = TextField(help_text="A harness of the blueprint, or a name of your choice.")
    mode = serializers.ChoiceField(choices=CLIENT_MODES, default=Run.Mode.ONE_SHOT.value)
    prompt = ExactTextField(
        max_bytes=ARGUMENT_MAX_BYTES,
        allow_blank=False,
        required=False,
        help_text="Becomes the harness's one-shot command, unless a command is given.",
    )
    attempt_id = IdField(
        required=False, help_text="An attempt of the workspace; by default the latest."
    )
    command = CommandSerializer(required=False)
    stdin = ExactTextField(
        max_bytes=STDIN_MAX_BYTES,
        required=False,
        help_text="Standard input; empty by default.",
    )
    env = EnvironmentField(
        required=False,
        help_text="Environment variables added to the workspace's, within the blueprint's limits.",
    )
    time_limit_ms = TimeLimitField(
        required=False, help_text="Time until it is stopped; by default the installation's limit."
    )


class ChangedFileSerializer(InputSerializer):
    """A file that a run changed, as its client reports it."""

    path = ExactTextField(max_bytes=4_096, allow_blank=False)
    change = serializers.ChoiceField(choices=REPORTED_CHANGES)
    old_path = ExactTextField(max_bytes=4_096, allow_blank=False, required=False)


@extend_schema_serializer(component_name="UpdateRun")
class RunUpdateSerializer(OwnedInputSerializer):
    """Where a run is to go, and, where it is not recorded, how it went."""

    status = serializers.ChoiceField(choices=Run.Status.choices)
    exit_code = WholeNumberField(
        min_value=-(2**31), max_value=2**31 - 1, required=False, help_text="0 for `completed`."
    )
    error_message = ExactTextField(max_bytes=MESSAGE_MAX_BYTES, required=False)
    diff = ExactTextField(max_bytes=2**30, required=False)
    changed_files = serializers.ListField(
        child=ChangedFileSerializer(), max_length=MAX_CHANGED_FILES, required=False
    )


RunListQuery = list_query(
    default=50,
    maximum=200,
    workspace_id=IdField(required=False, help_text="Only runs of this workspace."),
    status=serializers.ChoiceField(choices=Run.Status.choices, required=False),
    mode=serializers.ChoiceField(
        choices=Run.Mode.choices,
        required=False,
        help_text="Only runs of this mode; by default all but the boot runs of sandboxes.",
    ),
)


class TimelineParameters(QuerySerializer):
    # The query of a timeline.
    from_sequence = OffsetField(required=False, default=0, help_text="The first one, inclusive.")
    to_sequence = OffsetField(required=False, help_text="The last one, inclusive.")
    limit = OffsetField(
        required=False,
        min_value=1,
        max_value=TIMELINE_MAX_LIMIT,
        default=TIMELINE_LIMIT,
        help_text=f"Maximum number of items (1 to {TIMELINE_MAX_LIMIT}, default {TIMELINE_LIMIT}).",
    )
    kinds = NamesField(
        required=False,
        numbers=KIND_NUMBERS,
        help_text="Only these kinds, separated by commas: " + ", ".join(KIND_NUMBERS) + ".",
    )


class ScrollbackParameters(QuerySerializer):
    # The query of a scrollback.
    process_id = OffsetField(
        required=False,
        help_text="Needed only where several leading processes have such a stream.",
    )
    stream = serializers.ChoiceField(choices=STREAMS)
    at_sequence = OffsetField(required=False, help_text="The state as of this event.")
    from_offset = OffsetField(required=False, default=0, help_text="The offset to begin at.")
    limit_bytes = OffsetField(
        required=False,
        min_value=1,
        help_text=f"Maximum number of bytes: as JSON {SCROLLBACK_BYTES} by default and "
        f"{SCROLLBACK_MAX_BYTES} "
        f"at most; as raw bytes all by default.",
    )


class ExportParameters(QuerySerializer):
    # The query of an export.
    format = serializers.ChoiceField(choices=EXPORT_FORMATS)
    process_id = OffsetField(
        required=False,
        help_text="Only this process; by default all leading ones. Not for ndjson, in-toto, "
        "ocsf and otlp. An asciicast shows one terminal, so this is required where a run has "
        "several.",
    )
    input = serializers.BooleanField(
        required=False, default=False, help_text="Whether the asciicast includes the input."
    )
    version = serializers.ChoiceField(
        choices=ASCIICAST_VERSIONS,
        required=False,
        default=3,
        help_text="The version of the asciicast.",
    )


class ShownCommandSerializer(OutputSerializer):
    """What is executed. Its environment and its input are not shown."""

    executable = serializers.CharField()
    args = serializers.ListField(child=serializers.CharField())
    cwd = serializers.CharField(required=False)


class RunSerializer(OutputSerializer):
    """A run and how it stands."""

    run_id = serializers.UUIDField(source="pk")
    workspace_id = serializers.UUIDField()
    attempt_id = serializers.UUIDField(required=False)
    owner_user_id = serializers.CharField()
    harness_id = serializers.CharField()
    mode = serializers.ChoiceField(choices=Run.Mode.choices)
    status = serializers.ChoiceField(choices=Run.Status.choices)
    reason = ReasonSerializer(
        required=False,
        help_text="While the run is queued: what it is waiting for. While it is running: that the "
        "machine on which it runs does not answer (`engine-lost`, `node-lost`).",
    )
    recorded = serializers.BooleanField(
        help_text="Whether the record decides how the run ended; otherwise its client does."
    )
    prompt = serializers.CharField(required=False)
    command = ShownCommandSerializer(required=False)
    time_limit_ms = serializers.IntegerField(required=False)
    exit_code = serializers.IntegerField(required=False)
    exit_signal = serializers.CharField(required=False)
    error_code = serializers.CharField(required=False)
    error_message = serializers.CharField(required=False)
    cancel_requested_at = TimestampField(
        required=False, help_text="Cancellation was requested, and the run is being stopped."
    )
    queued_at = TimestampField()
    started_at = TimestampField(required=False)
    finished_at = TimestampField(required=False)
    created_at = TimestampField()
    updated_at = TimestampField()

    def to_representation(self, instance: Any) -> dict[str, Any]:
        shown = super().to_representation(instance)
        return {name: value for name, value in shown.items() if value != ""}


class TimelineItemSerializer(OutputSerializer):
    """One event of a record."""

    event_id = serializers.CharField(help_text="`<runId>:<sequence>`")
    sequence = DecimalTextField()
    kind = serializers.ChoiceField(choices=TIMELINE_KINDS)
    occurred_at = DecimalTextField(help_text="Monotonic clock of the workspace, in nanoseconds.")
    observed_at = serializers.DateTimeField(help_text="Wall clock of the workspace.")
    summary = serializers.CharField()
    ref = AnyField(
        required=False,
        help_text="What the event says, as its kind has it; of I/O: stream, byteCount, "
        "streamOffset, the ranges that are masked, and `streamKind`, the stream's number (1 stdin, "
        "2 stdout, 3 stderr, 4 ptyInput, 5 pty); of the start of a process: `executable` and "
        "`args` beside `argv`; of its end: `exitCode` beside `code`, and `durationMicros` as a "
        "decimal; of the start of a session: `origin`, who "
        "connected from where; of what a session started: `channel` and `kind`. `omitted` when it "
        "is long.",
    )
    process_id = DecimalTextField(required=False)
    capture_method = serializers.IntegerField(
        help_text="1 pipe, 2 pty, 3 proxy, 4 inotify, 5 snapshot, 6 ebpf, 7 netlink, 8 internal, "
        "9 poll, 0 unspecified."
    )
    confidence = serializers.IntegerField(
        help_text="1 observed, 2 inferred, 3 unknown, 0 unspecified."
    )


class TimelineSerializer(OutputSerializer):
    """A page of a timeline."""

    items = TimelineItemSerializer(many=True)
    next_from_sequence = DecimalTextField(
        required=False, help_text="Where to continue; absent when there are no more events so far."
    )


class RunEventSerializer(OutputSerializer):
    """Everything that is known of one event."""

    event_id = serializers.CharField()
    run_id = serializers.UUIDField()
    runtime_id = serializers.UUIDField(
        allow_null=True,
        help_text="The boot run of the attempt in whose container it happened.",
    )
    schema_version = serializers.IntegerField()
    sequence = DecimalTextField()
    observed_at = serializers.DateTimeField(help_text="Wall clock of the workspace.")
    observed_at_micros = serializers.CharField(help_text="The same in microseconds since 1970.")
    monotonic_timestamp = DecimalTextField(help_text="Nanoseconds.")
    ingested_at = TimestampField(required=False, help_text="When it was committed here.")
    process_id = DecimalTextField(required=False)
    stream = serializers.ChoiceField(choices=TOLD_STREAMS, required=False)
    stream_offset = DecimalTextField(required=False)
    capture_method = serializers.IntegerField()
    confidence = serializers.IntegerField()
    payload_case = serializers.ChoiceField(choices=TIMELINE_KINDS)
    payload = AnyField()
    content_base64 = serializers.CharField(
        required=False, help_text="The bytes of an I/O chunk, or the patch of a changed file."
    )
    link = serializers.CharField(help_text="First 8 bytes of the chain's head after it, in hex.")


class MissingSerializer(OutputSerializer):
    """Bytes of a stream that the record does not hold; `toOffset` is exclusive."""

    from_offset = DecimalTextField()
    to_offset = DecimalTextField()
    reason = serializers.CharField()


class ScrollbackSerializer(OutputSerializer):
    """A piece of a stream, byte for byte."""

    process_id = DecimalTextField(
        required=False, help_text="Absent while the run has started no process."
    )
    stream = serializers.ChoiceField(choices=STREAMS)
    byte_count = serializers.IntegerField()
    from_offset = DecimalTextField()
    next_offset = DecimalTextField(
        required=False, help_text="Where to continue, when there is more."
    )
    content_base64 = serializers.CharField()
    missing = MissingSerializer(many=True)
    complete = serializers.BooleanField(
        help_text="Everything from fromOffset to the end of the stream is present, and the stream "
        "has ended."
    )


class LossSpanSerializer(OutputSerializer):
    """Something the record does not hold, with its reason; `toOffset` is exclusive."""

    kind = serializers.ChoiceField(choices=RunLoss.Kind.choices)
    detected_via = serializers.CharField(
        help_text="`marker`: the source declared it; `gap`: it was detected."
    )
    detected_at = TimestampField()
    from_sequence = DecimalTextField(required=False)
    to_sequence = DecimalTextField(required=False)
    process_id = DecimalTextField(required=False)
    stream = serializers.ChoiceField(choices=TOLD_STREAMS, required=False)
    from_offset = DecimalTextField(required=False)
    to_offset = DecimalTextField(required=False)
    dropped_count = DecimalTextField(required=False)
    reason = serializers.CharField(required=False)


class CoverageSerializer(OutputSerializer):
    """How far one source of a record saw what happened."""

    state = serializers.CharField(required=False, help_text="`on`, `limited` or `off`")
    method = serializers.CharField(required=False)
    reason = serializers.CharField(required=False)
    detail = serializers.CharField(required=False)
    interval_ms = serializers.IntegerField(required=False)


class LossSerializer(OutputSerializer):
    """What a record does not hold."""

    run_id = serializers.UUIDField()
    dropped_event_count = DecimalTextField(help_text="Sum of the dropped_event spans' counts.")
    sequence_gap_count = serializers.IntegerField()
    watch_overflow_count = serializers.IntegerField()
    early_close = serializers.BooleanField()
    spans = LossSpanSerializer(many=True)
    spans_truncated = serializers.BooleanField(help_text="There are more spans than are listed.")
    complete = serializers.BooleanField(
        help_text="The record has ended properly and nothing is missing: it is sealed and has no "
        "loss "
        "span. What is not observed at all does not count as loss; see `coverage`."
    )
    coverage = serializers.DictField(child=CoverageSerializer())


class FileChangeSerializer(OutputSerializer):
    """A file that differs between the start and the end of a run."""

    path = serializers.CharField()
    path_base64 = serializers.CharField(required=False, help_text="When `path` is not UTF-8.")
    change = serializers.ChoiceField(choices=RECORDED_CHANGES)
    old_path = serializers.CharField(required=False)
    old_path_base64 = serializers.CharField(required=False)
    binary = serializers.BooleanField()
    added_lines = serializers.IntegerField(required=False)
    removed_lines = serializers.IntegerField(required=False)
    size_before = DecimalTextField(required=False)
    size_after = DecimalTextField(required=False)
    mode_before = serializers.CharField(required=False)
    mode_after = serializers.CharField(required=False)
    patch_truncated = serializers.BooleanField(required=False)


class BaselineSerializer(OutputSerializer):
    """What the working tree at the end was held against."""

    root = serializers.CharField()  # type: ignore[assignment]  # DRF takes fields off the class
    method = serializers.CharField()
    tree = serializers.CharField(required=False)
    end_tree = serializers.CharField(required=False)
    file_count = DecimalTextField()


class ChangesSerializer(OutputSerializer):
    """What a run changed in the working tree."""

    files = FileChangeSerializer(many=True)
    diff = serializers.CharField()
    diff_base64 = serializers.CharField(required=False, help_text="When `diff` is not UTF-8.")
    truncated = serializers.BooleanField()
    exclusive = serializers.BooleanField(
        help_text="No other run worked in the workspace at the same time; otherwise the changes "
        "may be theirs."
    )
    overlapping_run_ids = serializers.ListField(child=serializers.UUIDField())
    baseline = BaselineSerializer(required=False)
