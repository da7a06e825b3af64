"""Rows of an installation that has been used for long, written by COPY."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import DateTimeField, Field, JSONField, Model
from psycopg.types.json import Jsonb

from controlplane.database.ids import uuid7
from runs.models import PARTITION_RUNS, Run, RunHead, RunLoss, RunOwner, RunProcess
from runs.record.ingest.new_rows import COLUMNS
from workspaces.models import Attempt, BuildJob, RuntimeInstance, Sandbox, Workspace

BUSY = "usr_busy"
"""The owner of half of everything."""

CHUNK = b"sixty-four bytes, as a program writes them, line after line ...\n"
_SPEC = {"harness": {"id": "shell"}}
_NOW = datetime.now(UTC)
_EVENT = (
    "%d\t%d\t%d\t1750000000000000\t1000000\t1\t64\t4\t2\t1\t1\t\\\\x0011223344556677\t\\\\x\t\\\\x"
    + CHUNK.hex()
    + "\n"
)


Place = tuple[uuid.UUID, uuid.UUID, str]
"""A workspace, its attempt and its owner."""


@dataclass(frozen=True, slots=True)
class Volume:
    """How much there is to be; ``long_run`` are the events of one run."""

    workspaces: int
    runs: int
    events: int
    long_run: int
    owners: int = 500


@dataclass(frozen=True, slots=True)
class Filled:
    """What readers ask for."""

    workspace_id: uuid.UUID
    """One with as many runs as any other, of the busy owner."""
    long_run: Run
    long_run_bytes: int


def fill(volume: Volume) -> Filled:
    """Write ``volume`` into an empty database, and let PostgreSQL look at it."""
    places = list(_workspaces(volume))
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM run_number_seq")
        (last,) = cursor.fetchone()
        cursor.execute("SELECT setval('run_number_seq', %s)", [last + volume.runs])
    runs = list(_runs(volume, places, last))
    _copy(Run, (_values_of(run) for run in runs))
    _events(volume, runs)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return Filled(places[0][0], runs[0], volume.long_run * len(CHUNK))


def _owner(position: int, volume: Volume) -> str:
    return f"usr_{position % volume.owners}" if position % 2 else BUSY


def _workspaces(volume: Volume) -> Iterator[Place]:
    """Write workspaces, each with one sandbox, attempt, image and runtime; yield the places."""
    sandboxes, attempts, jobs, runtimes, workspaces = [], [], [], [], []
    for position in range(volume.workspaces):
        owner = _owner(position, volume)
        workspace, sandbox, attempt, run = uuid7(), uuid7(), uuid7(), uuid7()
        # Few of the busy owner failed, and those long ago.
        status = "failed" if 0 < position < 40 else "ready" if position % 50 == 3 else "stopped"
        deleted = _NOW if position % 10 == 9 else None
        workspaces.append(
            {
                "id": workspace,
                "owner_user_id": owner,
                "name": f"w{position}",
                "latest_sandbox_id": sandbox,
                "deleted_at": deleted,
            }
        )
        sandboxes.append(
            {
                "id": sandbox,
                "workspace_id": workspace,
                "owner_user_id": owner,
                "status": status,
                "repository": f"r/{position % 500}",
                "tag": "latest",
                "registry_id": "default",
                "spec": _SPEC,
                "latest_attempt_id": attempt,
            }
        )
        attempts.append(
            {
                "id": attempt,
                "sandbox_id": sandbox,
                "workspace_id": workspace,
                "run_id": run,
                "status": "succeeded",
                "requested_by": owner,
                "spec": _SPEC,
                "finished_at": _NOW,
            }
        )
        jobs.append(
            {
                "attempt_id": attempt,
                "status": "succeeded",
                "registry_id": "default",
                "repository": f"r/{position % 500}",
                "tag": "latest",
                "max_attempts": 3,
                "published_digest": f"sha256:{position % 5000:064x}",
                "finished_at": _NOW - timedelta(days=30),
            }
        )
        ready = status == "ready" and deleted is None
        ended = "failed" if status == "failed" else "stopped"
        runtimes.append(
            {
                "run_id": run,
                "attempt_id": attempt,
                "resource_id": "c",
                "endpoint": "e",
                "status": "running" if ready else ended,
                "launched_at": _NOW,
                "finished_at": None if ready else _NOW,
            }
        )
        yield workspace, attempt, owner
    # Workspaces and sandboxes name each other, and so do sandboxes and attempts.
    _copy(Workspace, ({**row, "latest_sandbox_id": None} for row in workspaces))
    _copy(Sandbox, ({**row, "latest_attempt_id": None} for row in sandboxes))
    _copy(Attempt, attempts)
    _copy(BuildJob, jobs)
    _copy(RuntimeInstance, runtimes)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workspaces_sandbox AS sandbox SET latest_attempt_id = attempt.id"
            " FROM workspaces_attempt AS attempt WHERE sandbox_id = sandbox.id"
        )
        cursor.execute(
            "UPDATE workspaces_workspace AS workspace SET latest_sandbox_id = sandbox.id"
            " FROM workspaces_sandbox AS sandbox WHERE workspace_id = workspace.id"
        )


def _runs(volume: Volume, places: list[Place], last: int) -> Iterator[Run]:
    """Make runs, the first one of each workspace, its boot run, before all second ones."""
    for position in range(volume.runs):
        workspace, attempt, owner = places[position % len(places)]
        # Few of the busy owner's were cancelled, and those long ago.
        cancelled = position < 40 if owner == BUSY else position % 7 == 0
        yield Run(
            number=last + 1 + position,
            workspace_id=workspace,
            attempt_id=attempt,
            owner_user_id=owner,
            harness_id="shell",
            mode=Run.Mode.BOOT if position < len(places) else Run.Mode.ONE_SHOT,
            status=Run.Status.CANCELLED if cancelled else Run.Status.COMPLETED,
            recorded=True,
            command={"executable": "/bin/true", "args": []},
            finished_at=_NOW,
            queued_at=_NOW,
        )


def _events(volume: Volume, runs: list[Run]) -> None:
    """Write the log: one long record, and what is left shared out among the others."""
    others, more = divmod(volume.events - volume.long_run, len(runs) - 1)
    counts = [volume.long_run, *(others + (n < more) for n in range(len(runs) - 1))]
    size = 100 + len(CHUNK)
    heads: list[dict[str, Any]] = []
    taken: dict[str, int] = {}
    with connection.cursor() as cursor:
        first, last = runs[0].number // PARTITION_RUNS, runs[-1].number // PARTITION_RUNS
        for part in range(first, last + 1):
            number = part * PARTITION_RUNS
            cursor.execute("SELECT run_event_ensure_partition(%s, %s)", [number, PARTITION_RUNS])
        columns = (
            "run_number, sequence, stream_offset, wall_us, monotonic_ns, process_number, length,"
            " kind, stream, method, confidence, link, meta, body"
        )
        assert columns.replace(" ", "").split(",") == list(COLUMNS)
        with cursor.copy(f"COPY run_event ({columns}) FROM STDIN") as copy:
            for run, count in zip(runs, counts, strict=True):
                copy.write(
                    "".join(_EVENT % (run.number, n + 1, n * len(CHUNK)) for n in range(count))
                )
    for run, count in zip(runs, counts, strict=True):
        taken[run.owner_user_id] = taken.get(run.owner_user_id, 0) + count * size
        heads.append(
            {
                "run_number": run.number,
                "owner_user_id": run.owner_user_id,
                "last_sequence": count,
                "event_count": count,
                "process_count": 1,
                "stored_bytes": count * size,
                "sealed_at": _NOW,
            }
        )
    _copy(RunHead, heads)
    lost = runs[::10]
    _copy(
        RunLoss, ({"run_number": run.number, "position": 1, "kind": "early_close"} for run in lost)
    )
    _copy(RunProcess, ({"run_number": run.number, "process_number": 1} for run in runs))
    _copy(
        RunOwner,
        ({"owner_user_id": owner, "sealed_bytes": size} for owner, size in taken.items()),
    )


def _values_of(row: Model) -> dict[str, Any]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.local_concrete_fields}


def _copy(model: type[Model], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows by COPY; what they do not name gets the field's default."""
    fields = [field for field in model._meta.local_concrete_fields if field.column]
    columns = ", ".join(f'"{field.column}"' for field in fields)
    table = model._meta.db_table
    with (
        connection.cursor() as cursor,
        cursor.copy(f'COPY "{table}" ({columns}) FROM STDIN') as copy,
    ):
        for row in rows:
            copy.write_row([_value(field, row) for field in fields])


def _value(field: Field[Any, Any], row: Mapping[str, Any]) -> Any:
    value = row.get(field.attname)
    if value is None and isinstance(field, DateTimeField) and not field.null:
        return _NOW
    if field.attname not in row:
        value = field.get_default()
    if isinstance(field, JSONField):
        return None if value is None else Jsonb(value)
    return value
