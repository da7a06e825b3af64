"""The NDJSON export of a record, line by line.

::

    {"type": "record", …}     whose record it is; never changes
    {"type": "event", …}      every event, in order, with everything that the chain covers
    {"type": "loss", …}       every loss span, in order
    {"type": "seal", …}       what was signed when the record ended, signature and key; or, while
    {"type": "open", …}       the record goes on, where it stood when it was exported

Each line is JSON in one form only: members sorted, no blanks, ASCII. So a check can hold a line
against what it should be byte for byte. 64-bit numbers are strings. A meta is given as text when it
is UTF-8 and in base64 when it is not; both stand for exact bytes. The seal is the exact text that
the signature covers (:mod:`runs.record.signatures`); it holds the digests of the first line and of
the loss lines, and the head of the chain (:mod:`runs.record.chain`) over the events.

Needs neither Django nor a database.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from runs.agent.record.frames import KIND_NAMES, STREAM_NAMES, Event, content_of
from runs.record.signatures import SEAL_VERSION, canonical

FORMAT = "svc-run-record"
VERSION = 1


class EventRow(NamedTuple):
    """One row of ``run_event`` without the run's number; fields are named as the columns are."""

    sequence: int
    stream_offset: int
    wall_us: int
    monotonic_ns: int
    process_number: int
    length: int
    kind: int
    stream: int
    method: int
    confidence: int
    link: bytes
    meta: bytes
    body: bytes


EVENT_COLUMNS = ", ".join(EventRow._fields)
"""For ``SELECT``: its rows are the arguments of :class:`EventRow`."""


class ExportedRun(Protocol):
    """What an export says of a run; of it, nothing may ever change."""

    id: uuid.UUID
    workspace_id: uuid.UUID
    mode: str
    harness_id: str
    created_at: datetime.datetime


class ExportedLoss(Protocol):
    """A row of ``run_loss``."""

    position: int
    kind: str
    from_sequence: int | None
    to_sequence: int | None
    process_number: int | None
    stream: int | None
    from_offset: int | None
    to_offset: int | None
    count: int | None
    reason: str
    detected_via: str
    detected_at: datetime.datetime


class ExportedHead(Protocol):
    """A row of ``run_head``."""

    last_sequence: int
    event_count: int
    chain_head: Any
    seal: Any
    signature: Any
    public_key: Any
    key_id: str


def event_of(row: EventRow) -> Event:
    """Return the event that a row holds: the numbers as the chain covers them."""
    return Event(
        row.sequence,
        row.wall_us,
        row.monotonic_ns,
        row.kind & 0xFFFF,
        row.method,
        row.confidence,
        row.process_number,
        row.stream,
        row.stream_offset,
        bytes(row.meta),
        bytes(row.body),
    )


def row_content(row: EventRow) -> bytes:
    """Return what the chain covers of a row."""
    return content_of(event_of(row))


def moment(value: datetime.datetime) -> str:
    """Return a point in time as exports and seals write it."""
    told = value.astimezone(datetime.UTC).isoformat(timespec="microseconds")
    return told.replace("+00:00", "Z")


def header_line(run: ExportedRun) -> bytes:
    """Return the first line."""
    return _line(
        {
            "type": "record",
            "format": FORMAT,
            "version": VERSION,
            "runId": str(run.id),
            "workspaceId": str(run.workspace_id),
            "mode": str(run.mode),
            "harnessId": run.harness_id,
            "createdAt": moment(run.created_at),
        }
    )


def event_line(row: EventRow) -> bytes:
    """Return the line of one event."""
    kind = row.kind & 0xFFFF
    told: dict[str, Any] = {
        "type": "event",
        "sequence": str(row.sequence),
        "kind": kind,
        "kindName": KIND_NAMES.get(kind, "unknown"),
        "process": row.process_number,
        "stream": row.stream,
        "streamName": STREAM_NAMES.get(row.stream),
        "offset": str(row.stream_offset),
        "length": row.length,
        "wallUs": str(row.wall_us),
        "monotonicNs": str(row.monotonic_ns),
        "method": row.method,
        "confidence": row.confidence,
        "link": bytes(row.link).hex(),
        "body": _base64(row.body),
    }
    meta = bytes(row.meta)
    try:
        told["meta"] = meta.decode()
    except UnicodeDecodeError:
        told["metaBase64"] = _base64(meta)
    return _line(told)


def loss_line(loss: ExportedLoss) -> bytes:
    """Return the line of one loss span."""
    return _line(
        {
            "type": "loss",
            "position": loss.position,
            "kind": str(loss.kind),
            "fromSequence": _number(loss.from_sequence),
            "toSequence": _number(loss.to_sequence),
            "process": loss.process_number,
            "stream": loss.stream,
            "fromOffset": _number(loss.from_offset),
            "toOffset": _number(loss.to_offset),
            "count": _number(loss.count),
            "reason": loss.reason,
            "detectedVia": loss.detected_via,
            "detectedAt": moment(loss.detected_at),
        }
    )


def seal_line(head: ExportedHead) -> bytes:
    """Return the last line: the seal, or where the record stands while it goes on.

    An export of a record that goes on holds the events up to ``head.last_sequence``, no later ones.
    """
    if head.seal is None:
        return _line(
            {
                "type": "open",
                "lastSequence": str(head.last_sequence),
                "events": str(head.event_count),
                "chainHead": bytes(head.chain_head).hex(),
            }
        )
    return _line(
        {
            "type": "seal",
            "seal": bytes(head.seal).decode(),
            "signature": _base64_or_none(head.signature),
            "publicKey": _base64_or_none(head.public_key),
            "keyId": head.key_id or None,
        }
    )


def loss_digest(lines: Iterable[bytes]) -> str:
    """Return the digest of the loss lines that a seal holds."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line)
    return digest.hexdigest()


def seal_of(
    header: bytes, losses: Iterable[bytes], head: Any, sealed_at: datetime.datetime, run_id: object
) -> bytes:
    """Return the seal of a record that ends: what is signed, and kept as these very bytes."""
    return canonical(
        {
            "version": SEAL_VERSION,
            "runId": str(run_id),
            "headerDigest": hashlib.sha256(header).hexdigest(),
            "events": str(head.event_count),
            "lastSequence": str(head.last_sequence),
            "chainHead": bytes(head.chain_head).hex(),
            "lossDigest": loss_digest(losses),
            "streams": {key: str(end) for key, end in head.stream_bytes.items()},
            "sealedAt": moment(sealed_at),
        }
    )


def _line(told: dict[str, Any]) -> bytes:
    return canonical(told) + b"\n"


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _base64(value: Any) -> str:
    return base64.b64encode(bytes(value)).decode()


def _base64_or_none(value: Any) -> str | None:
    return None if value is None else _base64(value)
