"""Pages of the log, and single events. The cost of a page depends on its length alone.

The JSON of a page is written here item by item rather than through a serializer: a page of 500
events has to cost less than twice what its SQL costs.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json

from controlplane.spelling import format_timestamp
from runs.agent.record.frames import KIND_NAMES, STREAM_NAMES, Kind
from runs.record.reading.rows import Row, fetch, fetch_in_order
from runs.record.reading.summaries import summary, text

MAX_SEQUENCE = 2**63 - 1
SCHEMA_VERSION = 1
SCANNED_EVENTS = 20_000
"""How many events a page that looks for some kinds reads at the most."""
REF_MAX_BYTES = 16 * 1024
"""A longer ``ref`` is left out of the timeline; the single event has it."""

_LAST_SECOND = 253_402_300_799  # 9999-12-31T23:59:59Z, the last one that four digits can name
_ESCAPED = json.encoder.encode_basestring  # what json.dumps uses for text

COLUMNS = f"""
    sequence, kind, process_number, stream, stream_offset, length, wall_us, monotonic_ns, method,
    confidence, CASE WHEN octet_length(meta) <= {REF_MAX_BYTES} THEN meta END AS shown,
    octet_length(meta) AS meta_length
"""
_RANGE = "run_number = %(run)s AND sequence BETWEEN %(first)s AND %(last)s"

ALL_KINDS = f"""
    SELECT {COLUMNS} FROM run_event WHERE {_RANGE} ORDER BY sequence LIMIT %(limit)s
"""
# One ordered index scan for each kind, merged: what lies between does not matter.
_ONE_KIND = f"""
    (SELECT {COLUMNS} FROM run_event WHERE {_RANGE} AND kind = {{kind}} AND kind <> {Kind.IO_CHUNK}
     ORDER BY sequence LIMIT %(limit)s)
"""
# Chunks have no index by sequence, which would slow every write for the sake of a rare question.
_WITH_CHUNKS = f"""
    SELECT * FROM (
        SELECT {COLUMNS} FROM run_event WHERE {_RANGE} ORDER BY sequence LIMIT {SCANNED_EVENTS}
    ) scanned
    WHERE kind = ANY(%(kinds)s) ORDER BY sequence LIMIT %(limit)s
"""
_BEHIND_SCANNED = f"""
    SELECT sequence FROM run_event WHERE {_RANGE} ORDER BY sequence
    OFFSET {SCANNED_EVENTS} LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class TimelineQuery:
    """Which events are wanted: inclusive bounds, at most ``limit``, of ``kinds`` or of all."""

    first: int
    last: int
    limit: int
    kinds: frozenset[int] | None = None


def timeline_page(run_id: uuid.UUID, run_number: int, query: TimelineQuery) -> bytes:
    """Return ``{items, nextFromSequence?}`` as JSON.

    ``nextFromSequence`` is where to go on when there are more events. A page that looks for chunks
    among other kinds may hold fewer than ``limit`` items, even none, and still have it.
    """
    parameters: dict[str, Any] = {
        "run": run_number,
        "first": query.first,
        "last": query.last,
        "limit": query.limit + 1,
    }
    if query.kinds is None:
        found = _all_kinds(parameters)
    elif Kind.IO_CHUNK not in query.kinds:
        each = " UNION ALL ".join(_ONE_KIND.format(kind=kind) for kind in sorted(query.kinds))
        merged = f"SELECT * FROM ({each}) merged ORDER BY sequence LIMIT %(limit)s"
        found = fetch_in_order(merged, parameters)
    else:
        parameters["kinds"] = sorted(query.kinds)
        found = fetch_in_order(_WITH_CHUNKS, parameters)
        if len(found) <= query.limit:
            behind = fetch_in_order(_BEHIND_SCANNED, parameters)
            return _page(run_id, found, behind[0][0] if behind else None)
    more = found[query.limit][0] if len(found) > query.limit else None
    return _page(run_id, found[: query.limit], more)


def _all_kinds(parameters: dict[str, Any]) -> list[Row]:
    """Return a page of all kinds, by a range of numbers no longer than the page.

    Numbers are dense, so that is nearly always enough, and the cost does not hang on how well
    PostgreSQL guesses the length of the rest. Where a hole leaves room, the rest is asked for.
    """
    limit, last = parameters["limit"], parameters["last"]
    near = min(last, parameters["first"] + limit)
    found = fetch(ALL_KINDS, {**parameters, "last": near})
    if len(found) == limit or near == last:
        return found
    rest = {"first": near + 1, "limit": limit - len(found)}
    return [*found, *fetch_in_order(ALL_KINDS, {**parameters, **rest})]


def _page(run_id: uuid.UUID, rows: Sequence[Row], more: int | None) -> bytes:
    following = "" if more is None else f',"nextFromSequence":"{more}"'
    return f'{{"items":[{",".join(items(str(run_id), rows))}]{following}}}'.encode()


def items(run_id: str, rows: Sequence[Row]) -> list[str]:
    """Return the JSON of each event, of rows of ``COLUMNS``.

    What is equal in many events is made once: the text of each second, the name of the stream, and
    the members that name the process and how the event came to be known.
    """
    seconds: dict[int, str] = {}
    ends: dict[tuple[int, int, int, int], tuple[str, str]] = {}
    head = f'{{"eventId":"{run_id}:'
    made = []
    for (
        sequence, kind, process, stream, offset, length, wall_us, monotonic_ns, method, confidence,
        meta, meta_length,
    ) in rows:  # fmt: skip
        second = wall_us // 1_000_000
        if second not in seconds:
            seconds[second] = f'","observedAt":"{_second(second)}'
        how = (process, stream, method, confidence)
        if how not in ends:
            ends[how] = _end(*how)
        name, end = ends[how]
        if kind == Kind.IO_CHUNK and not meta_length:
            # The commonest event by far; the text is what `summary` and `_reference` would make.
            number, size, place = str(sequence), str(length), str(offset)
            made.append(
                f'{head}{number}","sequence":"{number}","kind":"ioChunk","occurredAt":"'
                f"{monotonic_ns}{seconds[second]}{_FRACTIONS[wall_us // 1000 % 1000]}"
                f'"{name}: {size} bytes at {place}","ref":{{"stream":"{name}",'
                f'"streamKind":{stream},"byteCount":"{size}","streamOffset":"{place}"}},{end}'
            )
            continue
        parsed, reference = _reference(kind, stream, offset, length, meta, meta_length)
        line = _ESCAPED(summary(kind, stream, offset, length, parsed))
        made.append(
            f'{head}{sequence}","sequence":"{sequence}","kind":"{KIND_NAMES.get(kind, "unknown")}",'
            f'"occurredAt":"{monotonic_ns}{seconds[second]}{_FRACTIONS[wall_us // 1000 % 1000]}'
            f"{line},{reference}{end}"
        )
    return made


_FRACTIONS = [f'.{milliseconds:03d}Z","summary":' for milliseconds in range(1000)]


def _end(process: int, stream: int, method: int, confidence: int) -> tuple[str, str]:
    """Return the name of a stream, and the last members of an event."""
    whose = f'"processId":"{process}",' if process else ""
    end = f'{whose}"captureMethod":{method},"confidence":{confidence}}}'
    return STREAM_NAMES.get(stream, "unknown"), end


def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(min(max(second, 0), _LAST_SECOND)))


def _reference(
    kind: int, stream: int, offset: int, length: int, meta: bytes | None, meta_length: int
) -> tuple[object, str]:
    """Return the parsed meta, and ``ref`` as a member with its comma; without one, no text."""
    if meta is None:
        return None, f'"ref":{{"omitted":true,"byteCount":"{meta_length}"}},'
    parsed, written = parse_meta(meta)
    if kind == Kind.IO_CHUNK:
        members: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
        chunk = chunk_members(stream, offset, length, members)
        written = json.dumps(chunk, separators=(",", ":"))
    elif more := process_members(kind, parsed):
        # Put in as text: what was told stays as it was told.
        written = f"{written.rstrip()[:-1]},{json.dumps(more, separators=(',', ':'))[1:]}"
    return parsed, f'"ref":{written},' if written else ""


def parse_meta(meta: bytes) -> tuple[object, str]:
    """Return the value and the text of an event's JSON.

    What is no strict JSON is shown as ``{"base64": …}``: it came out of a workspace, and an answer
    has to stay readable.
    """
    if not meta:
        return None, ""
    try:
        return from_json(meta, allow_inf_nan=False), meta.decode()
    except ValueError:
        told = {"base64": base64.b64encode(meta).decode()}
        return told, json.dumps(told)


def _is_finite(value: object) -> bool:
    """Tell whether a parsed meta can be written as JSON again: ``1e999`` reads as infinity."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def process_members(kind: int, told: object) -> dict[str, Any]:
    """Return what is told of a process's start or end in the words of other clients as well.

    Members that the event itself has are left as they are.
    """
    members: dict[str, Any] = {}
    if not isinstance(told, dict):
        return members
    argv, code, duration = told.get("argv"), told.get("code"), told.get("durationUs")
    if kind == Kind.PROCESS_STARTED and isinstance(argv, list) and argv:
        words = [text(word) for word in argv]
        members = {"executable": words[0], "args": words[1:]}
    elif kind == Kind.PROCESS_EXITED:
        members |= {"exitCode": code} if _is_number(code) else {}
        members |= {"durationMicros": str(duration)} if _is_number(duration) else {}
    return {name: value for name, value in members.items() if name not in told}


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_SEQUENCE


def chunk_members(stream: int, offset: int, length: int, meta: dict[str, Any]) -> dict[str, Any]:
    """Return what is told of an I/O chunk; ``masked`` is ranges ``[from, to)`` of raw offsets."""
    members: dict[str, Any] = {
        "stream": STREAM_NAMES.get(stream, "unknown"),
        "streamKind": stream,
        "byteCount": str(length),
        "streamOffset": str(offset),
    }
    return {**members, "masked": meta["masked"]} if "masked" in meta else members


_EVENT = """
    SELECT kind, process_number, stream, stream_offset, length, wall_us, monotonic_ns, method,
        confidence, link, meta, body,
        (SELECT ingested_at FROM run_checkpoint
         WHERE run_number = %(run)s AND sequence >= %(sequence)s ORDER BY sequence LIMIT 1)
    FROM run_event WHERE run_number = %(run)s AND sequence = %(sequence)s
"""


def raw_event(run_id: uuid.UUID, run_number: int, sequence: int) -> dict[str, Any] | None:
    """Return everything that is known of one event; None when the record has no such event."""
    found = fetch(_EVENT, {"run": run_number, "sequence": sequence})
    if not found:
        return None
    (
        kind, process, stream, offset, length, wall_us, monotonic_ns, method, confidence, link,
        meta, body, ingested_at,
    ) = found[0]  # fmt: skip
    parsed, _ = parse_meta(meta)
    payload = parsed if _is_finite(parsed) else {"base64": base64.b64encode(meta).decode()}
    if kind == Kind.IO_CHUNK:
        payload = chunk_members(stream, offset, length, parsed if isinstance(parsed, dict) else {})
    elif isinstance(payload, dict):
        payload = {**payload, **process_members(kind, payload)}
    second, micros = divmod(wall_us, 1_000_000)
    event: dict[str, Any] = {
        "eventId": f"{run_id}:{sequence}",
        "runId": str(run_id),
        "schemaVersion": SCHEMA_VERSION,
        "sequence": str(sequence),
        "observedAt": f"{_second(second)}.{micros // 1000:03d}Z",
        "observedAtMicros": str(wall_us),
        "monotonicTimestamp": str(monotonic_ns),
        "captureMethod": method,
        "confidence": confidence,
        "payloadCase": KIND_NAMES.get(kind, "unknown"),
        "payload": payload if payload is not None else {},
        "link": binascii.hexlify(link).decode(),
    }
    if process:
        event["processId"] = str(process)
    if stream:
        event |= {"stream": STREAM_NAMES.get(stream, "unknown"), "streamOffset": str(offset)}
    if body or kind == Kind.IO_CHUNK:
        event["contentBase64"] = base64.b64encode(body).decode()
    if isinstance(ingested_at, datetime):
        event["ingestedAt"] = format_timestamp(ingested_at.astimezone(UTC))
    return event
