"""Writing to the tables of a record, in the present transaction, behind a locked head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.db import DatabaseError, connection, transaction

from controlplane.metrics.families import RECORD_LOSSES
from runs.models import RunHead
from runs.record.ingest import new_rows as rows
from runs.record.ingest.derived import Derived, Loss

Beside = tuple[str, Sequence[Any]]
"""A statement and its values, to be carried out as a part of another one."""


class Settling(NamedTuple):
    """What settles a run, in one row or none, and what is announced when it has."""

    beside: Beside
    told: str


_LOSS = """
INSERT INTO run_loss (run_number, position, kind, detected_via, from_sequence, to_sequence,
    process_number, stream, from_offset, to_offset, count, reason)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""

# What is told first counts: an event that says it again, differently, stands in the log only.
_START = """
INSERT INTO run_process (run_number, process_number, parent_number, leader, pid, argv, cwd, name,
    streams, started_us, exit_signal, exit_reason)
VALUES (%s, %s, %s, %s, %s, %s::text[], %s, %s, %s::smallint[], %s, '', '')
ON CONFLICT (run_number, process_number) DO UPDATE SET
    parent_number = excluded.parent_number, leader = excluded.leader, pid = excluded.pid,
    argv = excluded.argv, cwd = excluded.cwd, name = excluded.name, streams = excluded.streams,
    started_us = excluded.started_us
WHERE run_process.started_us IS NULL"""
_EXIT = """
INSERT INTO run_process (run_number, process_number, leader, argv, cwd, name, streams, ended_us,
    exit_code, exit_signal, exit_reason)
VALUES (%s, %s, false, '{}', '', '', '{}', %s, %s, %s, %s)
ON CONFLICT (run_number, process_number) DO UPDATE SET
    ended_us = excluded.ended_us, exit_code = excluded.exit_code,
    exit_signal = excluded.exit_signal, exit_reason = excluded.exit_reason
WHERE run_process.ended_us IS NULL"""
_WHOLE = """
INSERT INTO run_process (run_number, process_number, parent_number, leader, pid, argv, cwd, name,
    streams, started_us, ended_us, exit_code, exit_signal, exit_reason)
VALUES (%s, %s, %s, %s, %s, %s::text[], %s, %s, %s::smallint[], %s, %s, %s, %s, %s)
ON CONFLICT (run_number, process_number) DO NOTHING"""
_SAVE = """
WITH checkpoint AS (
    INSERT INTO run_checkpoint (run_number, sequence, chain_head) VALUES (%s, %s, %s)
){beside}
UPDATE run_head SET {changes} WHERE run_number = %s RETURNING pg_notify(%s, {told})"""
_TOLD = "CASE WHEN EXISTS (SELECT FROM settling) THEN %s ELSE %s END"
_CHANGE = """
INSERT INTO run_change (run_number, position, path, old_path, change, "binary", added_lines,
    removed_lines, size_before, size_after, mode_before, mode_after, patch, patch_truncated)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (run_number, position) DO NOTHING"""


def copy_events(first: bytes, pieces: Iterable[bytes]) -> int:
    """Store rows of ``run_event`` as :mod:`runs.record.ingest.new_rows` packs them.

    Returns how many bytes.

    Goes below Django's cursor, which has no ``COPY``; its errors come out as Django's.
    """
    with (
        connection.wrap_database_errors,
        connection.connection.cursor() as cursor,
        cursor.copy(rows.COPY) as copy,
    ):
        copy.write(rows.HEADER + first)
        stored = len(first)
        for piece in pieces:
            copy.write(piece)
            stored += len(piece)
        copy.write(rows.TRAILER)
    return stored


def add_losses(head: RunHead, losses: Sequence[Loss]) -> None:
    """Store loss spans behind those that the head counts."""
    if not losses:
        return
    lines = [
        (
            head.run_number,
            head.loss_count + position,
            loss.kind,
            loss.detected_via,
            loss.from_sequence,
            loss.to_sequence,
            loss.process_number,
            loss.stream,
            loss.from_offset,
            loss.to_offset,
            loss.count,
            loss.reason,
        )
        for position, loss in enumerate(losses, 1)
    ]
    _many(_LOSS, lines)
    head.loss_count += len(losses)
    transaction.on_commit(lambda: _count(losses))


def _count(losses: Sequence[Loss]) -> None:
    for loss in losses:
        RECORD_LOSSES.count(kind=loss.kind)


def add_derived(head: RunHead, derived: Derived) -> list[Beside]:
    """Store what a batch told besides its events; return what is to be stored with the head.

    That is a process of which nothing was stored before and everything is told, where it is alone.
    """
    add_losses(head, derived.losses)
    number = head.run_number
    starts, exits = derived.starts, derived.exits
    whole = starts.keys() & exits.keys()
    lines = [(number, each, *starts[each], *exits[each]) for each in sorted(whole)]
    later: list[Beside] = []
    if len(lines) == 1 and min(whole) > head.process_count:
        later = [(_WHOLE, lines.pop())]
    elif _many(_WHOLE, lines) != len(lines):
        whole = set()  # something was told of one of them before: each part for itself
    _many(_START, [(number, each, *told) for each, told in starts.items() if each not in whole])
    _many(_EXIT, [(number, each, *told) for each, told in exits.items() if each not in whole])
    _many(_CHANGE, [(number, position, *told) for position, told in derived.changes.items()])
    head.process_count = max(head.process_count, derived.highest_process)
    return later


def write(beside: Iterable[Beside]) -> None:
    """Carry statements out by themselves that were to be a part of another one."""
    for statement, values in beside:
        with connection.cursor() as cursor:
            cursor.execute(statement, values)


def save_head(
    head: RunHead,
    *,
    channel: str,
    told: str,
    beside: Sequence[Beside] = (),
    settling: Settling | None = None,
) -> None:
    """Save what a batch changed of the head and where the chain stands; announce it.

    One statement, since somebody waits for each of them; ``beside`` and ``settling`` are written
    with it.
    """
    parts = [(f"beside_{place}", *each) for place, each in enumerate(beside)]
    announced = [told]
    if settling is not None:
        parts.append(("settling", *settling.beside))
        announced = [settling.told, told]
    fields = [field for field in RunHead._meta.concrete_fields if not field.primary_key]
    values: list[Any] = [
        field.get_db_prep_save(getattr(head, field.attname), connection) for field in fields
    ]
    changes = ", ".join(f"{field.column} = %s" for field in fields)
    with connection.cursor() as cursor:
        number, chain_head = head.run_number, bytes(head.chain_head)
        given: list[Any] = [number, head.last_sequence, chain_head]
        for _, _, values_beside in parts:
            given += values_beside
        given += [*values, number, channel, *announced]
        statement = _SAVE.format(
            beside="".join(f", {name} AS ({each})" for name, each, _ in parts),
            changes=changes,
            told="%s" if settling is None else _TOLD,
        )
        cursor.execute(statement, given)
        if cursor.rowcount != 1:
            raise DatabaseError(f"run {number} has no head any more")


def _many(statement: str, lines: Sequence[tuple[Any, ...]]) -> int:
    """Execute a statement for each of the lines; return how many rows were written."""
    if not lines:
        return 0
    with connection.cursor() as cursor:
        if len(lines) == 1:  # the pipeline of many costs more than it
            cursor.execute(statement, lines[0])
        else:
            cursor.executemany(statement, lines)
        return int(cursor.rowcount)
