"""What a run changed in the working tree, and how far that is the run's own doing."""

from __future__ import annotations

import base64
from typing import Any

from django.db.models import Q

from runs.agent.record.frames import Kind
from runs.models import Run, RunChange
from runs.record.ingest import meta as metas
from runs.record.reading.rows import fetch

MAX_DIFF_BYTES = 16 * 1024**2
MAX_FILES = 50_000
"""More than a run is ever recorded with; a workspace may have forged any number."""
MAX_OVERLAPPING = 200
KNOWN_CHANGES = frozenset({"added", "modified", "deleted", "renamed", "metadataChanged"})

_SNAPSHOTS = """
    SELECT kind, meta FROM run_event
    WHERE run_number = %(run)s AND kind = %(kind)s AND kind <> 4 ORDER BY sequence LIMIT 16
"""
_PATCHES = """
    SELECT patch, position FROM (
        SELECT patch, position, sum(octet_length(patch) + 1) OVER (ORDER BY position) AS total
        FROM run_change WHERE run_number = %(run)s AND octet_length(patch) > 0
    ) counted WHERE total <= %(limit)s ORDER BY position
"""
_ALL_PATCHES = """
    SELECT count(*) FROM run_change WHERE run_number = %(run)s AND octet_length(patch) > 0
"""


def changes(run: Run) -> dict[str, Any]:
    """Return the members of the answer.

    ``diff`` is the patches of all files one after the other, of at most ``MAX_DIFF_BYTES``; where
    it is not UTF-8, ``diff`` is the readable form and ``diffBase64`` the exact one. ``exclusive``
    is false when other runs worked in the workspace at the same time: the changes may be theirs.
    """
    # Without the patches: together they may be far more than an answer holds.
    found = RunChange.objects.filter(run_number=run.number).order_by("position").defer("patch")
    rows = list(found[: MAX_FILES + 1])
    diff, truncated = _diff(run, rows)
    truncated, rows = truncated or len(rows) > MAX_FILES, rows[:MAX_FILES]
    overlapping = _overlapping(run)
    answer: dict[str, Any] = {
        "files": [_file(row) for row in rows],
        **_text("diff", diff),
        "truncated": truncated or _told_truncated(run),
        "exclusive": not overlapping,
        "overlappingRunIds": overlapping[:MAX_OVERLAPPING],
    }
    taken = baseline(run)
    return {**answer, "baseline": taken} if taken else answer


def _diff(run: Run, rows: list[RunChange]) -> tuple[bytes, bool]:
    if not run.recorded:
        return run.reported_diff.encode(), False
    found = fetch(_PATCHES, {"run": run.number, "limit": MAX_DIFF_BYTES})
    parts = [patch if patch.endswith(b"\n") else patch + b"\n" for patch, _ in found]
    ((wanted,),) = fetch(_ALL_PATCHES, {"run": run.number})
    truncated = wanted > len(found) or any(row.patch_truncated for row in rows)
    return b"".join(parts), truncated


def _text(name: str, raw: bytes) -> dict[str, str]:
    """Return bytes as text, and exactly in a member beside it when they are not UTF-8."""
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        exact = base64.b64encode(raw).decode()
        return {name: raw.decode(errors="replace"), f"{name}Base64": exact}


def _file(row: RunChange) -> dict[str, Any]:
    change = row.change if row.change in KNOWN_CHANGES else "unknown"
    members: dict[str, Any] = {**_text("path", bytes(row.path)), "change": change}
    if row.old_path is not None:
        members |= _text("oldPath", bytes(row.old_path))
    members["binary"] = row.binary
    told = {
        "addedLines": row.added_lines,
        "removedLines": row.removed_lines,
        "sizeBefore": None if row.size_before is None else str(row.size_before),
        "sizeAfter": None if row.size_after is None else str(row.size_after),
        "modeBefore": row.mode_before or None,
        "modeAfter": row.mode_after or None,
    }
    members |= {name: value for name, value in told.items() if value is not None}
    return {**members, "patchTruncated": True} if row.patch_truncated else members


def _metas(run: Run, kind: int) -> list[dict[str, Any]]:
    return [metas.read(meta) for _, meta in fetch(_SNAPSHOTS, {"run": run.number, "kind": kind})]


def _told_truncated(run: Run) -> bool:
    return any(told.get("truncated") is True for told in _metas(run, Kind.FILE_DIFF_AVAILABLE))


def baseline(run: Run) -> dict[str, Any]:
    """Return what the tree at the start was taken with; nothing when none was taken."""
    members: dict[str, Any] = {}
    for told in _metas(run, Kind.FILE_SNAPSHOT_COMPLETED):
        tree = metas.text(told.get("tree"), 64)
        if told.get("when") == "end":
            members |= {"endTree": tree} if tree else {}
            continue
        members |= {
            "root": metas.text(told.get("root"), 4096),
            "method": metas.text(told.get("method"), 64),
            "fileCount": str(metas.integer(told.get("files")) or 0),
        }
        members |= {"tree": tree} if tree else {}
    return members if "method" in members else {}


def _overlapping(run: Run) -> list[str]:
    """Return the other runs, boots aside, that worked in the workspace while this one did."""
    if run.started_at is None:
        return []
    others = (
        Run.objects.filter(workspace_id=run.workspace_id, started_at__isnull=False)
        .exclude(mode=Run.Mode.BOOT)
        .exclude(pk=run.pk)
        .filter(Q(finished_at__isnull=True) | Q(finished_at__gte=run.started_at))
    )
    if run.finished_at is not None:
        others = others.filter(started_at__lte=run.finished_at)
    ids = others.order_by("id").values_list("pk", flat=True)[: MAX_OVERLAPPING + 1]
    return [str(pk) for pk in ids]
