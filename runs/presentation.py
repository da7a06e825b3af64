"""What the answers show of runs and their records, and what their parameters mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rest_framework import serializers

from controlplane.errors import Fault, NotFound, ValidationFailed
from runs.agent.record.frames import Stream
from runs.fields import INT64_MAX, STREAM_NUMBERS, OffsetField
from runs.models import Run, RunHead, RunProcess
from runs.reasons import reasons_of
from runs.record.reading import export
from runs.record.reading.attestation import attestation
from runs.record.reading.ocsf import ocsf
from runs.record.reading.otlp import otlp
from runs.record.reading.scrollback import StreamView, open_stream, scrollback
from runs.record.reading.timeline import TimelineQuery, raw_event
from runs.serializers import SCROLLBACK_BYTES, SCROLLBACK_MAX_BYTES, RunSerializer
from workspaces.serializers import ReasonSerializer

BYTES = "application/octet-stream"
SHOWN_RANGES = 100
SHOWN_PROCESSES = 50


def present_runs(rows: Sequence[Run]) -> list[Any]:
    """Return what a list shows of these runs."""
    reasons = reasons_of(rows)
    shown = list(RunSerializer(rows, many=True).data)
    for run, members in zip(rows, shown, strict=True):
        if run.pk in reasons:
            members["reason"] = ReasonSerializer(reasons[run.pk]).data
    return shown


def present_run(run: Run) -> Any:
    """Return what an answer shows of one run."""
    return present_runs([run])[0]


def timeline_query(query: Mapping[str, Any]) -> TimelineQuery:
    """Return the page of the timeline that parameters ask for; raise ``ValidationFailed``."""
    last = query.get("to_sequence", INT64_MAX)
    if last < query["from_sequence"]:
        detail = "It is below fromSequence."
        raise ValidationFailed([Fault("range-reversed", detail, parameter="toSequence")])
    return TimelineQuery(query["from_sequence"], last, query["limit"], query.get("kinds"))


def sequence_number(sequence: str) -> int:
    """Return the number of an event out of a path; raise ``ValidationFailed``."""
    try:
        number: int = OffsetField().run_validation(sequence)
    except serializers.ValidationError as exc:
        detail = "A sequence is a decimal number of at most 63 bits."
        raise ValidationFailed([Fault("invalid", detail, parameter="sequence")]) from exc
    return number


def present_event(run: Run, number: int) -> Any:
    """Return everything that is known of one event; raise ``NotFound``."""
    event = raw_event(run.pk, run.number, number)
    if event is None:
        raise NotFound("The run has no such event.", code="event-not-found")
    runtime = run.attempt.run_id if run.attempt else None
    return {**event, "runtimeId": None if runtime is None else str(runtime)}


# ---------------------------------------------------------------- streams


def require_scrollback_limit(query: Mapping[str, Any], *, raw: bool) -> None:
    """Raise ``ValidationFailed`` when more is asked for than an answer in JSON may hold."""
    if not raw and (query.get("limit_bytes") or 0) > SCROLLBACK_MAX_BYTES:
        detail = f"As JSON at most {SCROLLBACK_MAX_BYTES} bytes are sent at a time."
        raise ValidationFailed([Fault("out-of-range", detail, parameter="limitBytes")])


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of one stream, from ``start``; ``limit`` None: all of it, as far as that is asked."""

    view: StreamView
    start: int
    limit: int | None
    has_process: bool

    def bytes(self) -> Iterator[bytes]:
        """Yield the bytes that are there."""
        return (piece for _, piece in self.view.chunks(self.start, self.limit))

    def headers(self) -> dict[str, str]:
        """Return the headers that say what is missing, before the bytes are sent."""
        missing = self.view.missing(self.start, self.view.end)
        ranges = ", ".join(f"{span.start}-{span.end}" for span in missing[:SHOWN_RANGES])
        return {
            **({"x-missing-ranges": ranges} if missing else {}),
            "x-missing-count": str(len(missing)),
            "x-stream-complete": str(self.view.closed and not missing).lower(),
            "Vary": "Accept",
        }

    def members(self) -> dict[str, Any]:
        """Return the piece as the members of an answer in JSON."""
        answer = scrollback(self.view, start=self.start, limit=self.limit or SCROLLBACK_BYTES)
        if not self.has_process:
            del answer["processId"]
        return answer


def open_piece(run: Run, query: Mapping[str, Any]) -> Piece:
    """Return the piece of a stream that parameters ask for; raise ``ValidationFailed``."""
    stream = STREAM_NUMBERS[query["stream"]]
    process = _process(run, query.get("process_id"), stream)
    view = open_stream(run.number, process or 0, stream, query.get("at_sequence", INT64_MAX))
    return Piece(view, query["from_offset"], query.get("limit_bytes"), process is not None)


def _process(run: Run, wanted: int | None, stream: int) -> int | None:
    """Return the number of the process that is meant; None when the run has started none so far.

    Unless it is named, the leading process with such a stream, if there is only one.
    """
    if wanted is not None:
        return _known(run, wanted)
    leaders = export.processes(run)
    output = OUTPUT_BESIDE.get(stream, stream)
    candidates = [leader for leader in leaders if output in leader.streams] or leaders
    if len(candidates) > 1:
        raise _several("leading processes", candidates)
    return candidates[0].process_number if candidates else None


OUTPUT_BESIDE = {Stream.STDIN: Stream.STDOUT, Stream.PTY_INPUT: Stream.PTY_OUTPUT}


def _known(run: Run, wanted: int) -> int:
    rows = RunProcess.objects.filter(run_number=run.number)
    if wanted > 2**31 - 1 or not rows.filter(process_number=wanted).exists():
        detail = "The run has no such process."
        raise ValidationFailed([Fault("unknown-process", detail, parameter="processId")])
    return wanted


def _several(what: str, processes: Sequence[RunProcess]) -> ValidationFailed:
    shown = ", ".join(str(process.process_number) for process in processes[:SHOWN_PROCESSES])
    more = len(processes) - SHOWN_PROCESSES
    named = f"{shown} and {more} more" if more > 0 else shown
    detail = f"The run has several {what}; choose one: {named}."
    return ValidationFailed([Fault("required", detail, parameter="processId")])


# ---------------------------------------------------------------- exports


def export_lines(run: Run, head: RunHead | None, query: Mapping[str, Any]) -> Iterator[Any]:
    """Return the lines of the export that parameters ask for.

    Raises ``NotFound`` for a run that is not recorded, ``ValidationFailed``, and
    ``ServiceUnavailable`` when nothing can be signed.
    """
    if head is None:
        raise NotFound("This run is not recorded.", code="record-not-found")
    number = query.get("process_id")
    if number is not None:
        _known(run, number)
    processes = export.processes(run, number)
    if query["format"] == "text":
        return export.plain_text(run, head, processes)
    if query["format"] == "in-toto":
        return attestation(run, head)
    if query["format"] == "ocsf":
        return ocsf(run, head)
    if query["format"] == "otlp":
        return otlp(run)
    if query["format"] != "asciicast":
        return export.ndjson(run, head)
    # A recording is one terminal's; what several showed cannot be shown on one.
    terminals = [process for process in processes if Stream.PTY_OUTPUT in process.streams]
    if len(terminals) > 1:
        raise _several("terminals", terminals)
    version, with_input = query["version"], query["input"]
    chosen = terminals or processes
    return export.asciicast(run, head, chosen, version=version, with_input=with_input)
