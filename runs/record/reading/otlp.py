"""A run as OpenTelemetry spans: one ``ExportTraceServiceRequest`` in OTLP's JSON.

The run is the root span and each process a span below its parent, or below the run when the record
does not hold the parent. The trace id is the run's id, so that whoever knows a run finds its trace.
What goes on has no end.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Exists, OuterRef

from runs.models import Run, RunProcess

_INTERNAL = 1
_ERROR = 2
_MAX_NS = 2**64 - 1
_BATCH = 100

Members = dict[str, Any]


def otlp(run: Run) -> Iterator[bytes]:
    """Yield the request in pieces, a span each."""
    resource = {
        "service.name": "controlplane",
        "service.version": settings.SVC_RELEASE,
        "user.id": run.owner_user_id,
        "controlplane.workspace.id": str(run.workspace_id),
    }
    shown = _json({"attributes": _attributes(resource)})
    yield b'{"resourceSpans":[{"resource":%b,"scopeSpans":[{"scope":{"name":"runs"},' % shown
    yield b'"spans":[' + _json(_run_span(run))
    parent = RunProcess.objects.filter(
        run_number=run.number, process_number=OuterRef("parent_number")
    )
    rows = RunProcess.objects.filter(run_number=run.number).annotate(held=Exists(parent))
    for process in rows.order_by("process_number").iterator(chunk_size=_BATCH):
        yield b"," + _json(_process_span(run, process, process.held))
    yield b"]}]}]}\n"


def _run_span(run: Run) -> Members:
    failed = run.status == Run.Status.FAILED
    return _span(
        run,
        _root(run),
        f"run {run.harness_id}",
        _moment_ns(run.started_at or run.created_at),
        _moment_ns(run.finished_at) if run.finished_at else None,
        {
            "controlplane.run.id": str(run.pk),
            "controlplane.run.mode": str(run.mode),
            "controlplane.run.status": str(run.status),
            "process.exit.code": run.exit_code,
        },
    ) | ({"status": {"code": _ERROR, "message": run.error_code}} if failed else {})


def _process_span(run: Run, process: RunProcess, parent_held: bool) -> Members:
    # A parent that came later can only be forged, and would make a circle.
    parent = process.parent_number
    below = parent_held and parent is not None and parent < process.process_number
    began = process.ended_us if process.started_us is None else process.started_us
    ended = process.ended_us
    executable = posixpath.basename(process.argv[0]) if process.argv else ""
    failed = bool(process.exit_code) or bool(process.exit_signal)
    return (
        _span(
            run,
            _process_id(process.process_number),
            process.name or executable or f"process {process.process_number}",
            _ns(began or 0),
            None if ended is None else max(_ns(ended), _ns(began or 0)),
            {
                "process.pid": process.pid,
                "process.executable.name": executable or None,
                "process.command_args": list(process.argv) or None,
                "process.working_directory": process.cwd or None,
                "process.exit.code": process.exit_code,
                "controlplane.process.number": process.process_number,
                "controlplane.process.exit.signal": process.exit_signal or None,
                "controlplane.process.exit.reason": process.exit_reason or None,
            },
        )
        | {"parentSpanId": _process_id(parent) if below and parent else _root(run)}
        | ({"status": {"code": _ERROR}} if failed else {})
    )


def _span(
    run: Run, span_id: str, name: str, began: int, ended: int | None, attributes: Members
) -> Members:
    return {
        "traceId": run.pk.hex,
        "spanId": span_id,
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(began),
        **({} if ended is None else {"endTimeUnixNano": str(ended)}),
        "attributes": _attributes(attributes),
    }


def _root(run: Run) -> str:
    # Its first bit is set, as in every UUID, so no process has it.
    return run.pk.hex[16:]


def _process_id(number: int) -> str:
    return f"{number:016x}"


def _moment_ns(moment: datetime) -> int:
    return _ns(round(moment.timestamp() * 1_000_000))


def _ns(micros: int) -> int:
    return min(max(micros, 0) * 1000, _MAX_NS)


def _attributes(told: Members) -> list[Members]:
    return [
        {"key": key, "value": _value(value)} for key, value in told.items() if value is not None
    ]


def _value(value: object) -> Members:
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    return {"stringValue": str(value)}


def _json(told: Members) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()
