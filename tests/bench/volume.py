"""Reads of an installation that has been used for long: 3 million events of 300,000 runs.

A database of the benchmark's own is filled by COPY. Each read is sent through the whole API by one
client, and its statements are sent once more alone; a later page is also compared with the first
one, which it should not take much longer than. Whether a plan reads a growing table from one end to
the other is told for each.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

from tests.bench.figures import Figure, milliseconds

if TYPE_CHECKING:
    from django.test import Client

    from tests.support.plans import Statement
    from tests.support.volume import Filled

ROUNDS = 15
LATER_PAGE = 500
LATER_MOST = 1.3
"""So many times what the first page takes, a later one may take."""
LIMIT = 50
PIECE_BYTES = 64 * 1024


def measure() -> Iterator[Figure]:
    """Yield the figures; expects a database of the benchmark's own."""
    from django.conf import settings
    from django.contrib.auth import get_user_model
    from django.test import Client

    from tests.support.volume import Volume, fill

    settings.ALLOWED_HOSTS = ["*"]
    started = time.perf_counter()
    volume = Volume(workspaces=50_000, runs=300_000, events=3_000_000, long_run=300_000)
    filled = fill(volume)
    yield Figure(
        f"filling: {volume.workspaces:,} workspaces, {volume.runs:,} runs",
        milliseconds(time.perf_counter() - started),
        "",
        None,
        "",
        True,
    )
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("bench", password="bench"))
    for name, path in _paths(filled).items():
        yield _read(name, _getter(client, path))
        if "limit=" in path:
            later = _later(client, path)
            if later is not None:
                yield _read(f"{name}, page {LATER_PAGE}", _getter(client, later))
                yield _against_first(_getter(client, path), _getter(client, later))
    for name, work in _duties().items():
        yield _read(name, work)


def _paths(filled: Filled) -> dict[str, str]:
    from tests.support.volume import BUSY

    runs = f"/v1/runs?limit={LIMIT}&ownerUserId={BUSY}"
    workspaces = f"/v1/workspaces?limit={LIMIT}&ownerUserId={BUSY}"
    run = f"/v1/runs/{filled.long_run.pk}"
    middle = filled.long_run_bytes // 2
    stream = f"processId=1&stream=stdout&fromOffset={middle}&limitBytes={PIECE_BYTES}"
    return {
        "runs of an owner": runs,
        "runs of a workspace": f"{runs}&workspaceId={filled.workspace_id}",
        "cancelled runs of an owner with few": f"{runs}&status=cancelled",
        "completed runs of an owner": f"{runs}&status=completed",
        "workspaces of an owner": workspaces,
        "failed workspaces of an owner with few": f"{workspaces}&status=failed",
        "stopped workspaces of an owner": f"{workspaces}&status=stopped",
        "a timeline's page, middle of 300,000 events": f"{run}/timeline?fromSequence=150000",
        "64 KiB of scrollback, middle of 300,000 events": f"{run}/scrollback?{stream}",
        "runs in the admin": "/admin/runs/run/",
        "runs in the admin, searched for words": "/admin/runs/run/?q=wholly-unheard-of",
        "runs in the admin, searched for an owner": "/admin/runs/run/?q=usr_3",
    }


def _duties() -> dict[str, Callable[[], object]]:
    from builds.images.garbage import long_unneeded
    from runs.record.room import taken_by
    from tests.support.volume import BUSY

    return {
        "bytes of an owner's records": lambda: taken_by(BUSY),
        "images that nobody needs, one pass": lambda: long_unneeded(None, keep=timedelta(days=7)),
    }


def _getter(client: Client, path: str) -> Callable[[], object]:
    def get() -> None:
        answer = client.get(path)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.content[:300]!r}")

    return get


def _later(client: Client, path: str) -> str | None:
    """Return the path of a later page; None when the list ends before."""
    following = path
    for _ in range(LATER_PAGE - 1):
        cursor = client.get(following).json().get("nextCursor")
        if cursor is None:
            return None
        following = f"{path}&cursor={cursor}"
    return following


def _read(name: str, work: Callable[[], object]) -> Figure:
    from tests.support.plans import sequential_scans, statements

    sent = statements(work)
    whole, alone = [], []
    for _ in range(ROUNDS):
        whole.append(_timed(work))
        alone.append(_timed(lambda: _send(sent)))
    scans = sorted(set[str]().union(*(sequential_scans(one.plan()) for one in sent)))
    ours, floor = median(whole), median(alone)
    return Figure(
        name,
        f"{ours * 1000:.1f} ms",
        f"{floor * 1000:.1f} ms SQL alone",
        ours / floor,
        f"<= 3x + 3 ms, no sequential scan{': ' + ', '.join(scans) if scans else ''}",
        not scans and ours <= 3 * floor + 0.003,
    )


def _against_first(first: Callable[[], object], later: Callable[[], object]) -> Figure:
    """Measure a later page and the first one in turns, so that both see the same machine."""
    taken_first, taken_later = [], []
    for _ in range(ROUNDS):
        taken_first.append(_timed(first))
        taken_later.append(_timed(later))
    return against_first(taken_later, taken_first)


def against_first(later: Sequence[float], first: Sequence[float]) -> Figure:
    """Return the figure that says whether a later page takes as long as the first one."""
    ours, floor = median(later), median(first)
    return Figure(
        f"  page {LATER_PAGE}, against page 1",
        f"{ours * 1000:.1f} ms",
        f"{floor * 1000:.1f} ms page 1",
        ours / floor,
        f"<= {LATER_MOST}x",
        ours <= LATER_MOST * floor,
    )


def _send(sent: list[Statement]) -> None:
    for statement in sent:
        statement.run()


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> int:
    """Measure and print the table."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    os.environ.setdefault("SVC_LOG_LEVEL", "ERROR")
    import django

    django.setup()
    from tests.bench.database import in_own_database
    from tests.bench.figures import report

    return report({"reads at volume": in_own_database(measure)})


if __name__ == "__main__":
    sys.exit(main())
