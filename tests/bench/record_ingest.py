"""Ingest of a record against ``psql \\copy`` of the same rows into a table with only the key.

Runnable alone: ``python -m tests.bench.record ingest``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.figures import Figure

ROUNDS = 7
FLOOR = "bench_record_floor"


def measure() -> list[Figure]:
    """Return the figures of ingest; the default database is the one they are measured in."""
    return [
        _measured("ingest of 4 KiB events", size=4096, count=24_000, ratio=0.7, rate=0),
        _measured("ingest of 128 B events", size=128, count=240_000, ratio=0.4, rate=100_000),
    ]


def _measured(name: str, *, size: int, count: int, ratio: float, rate: int) -> Figure:
    from tests.bench.figures import Figure

    ours: list[float] = []
    floors: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for warm in (True, *[False] * ROUNDS):
            contents, append = _record(size, count)
            rows = _binary(Path(folder) / "rows", contents)
            taken = _timed(lambda: append(contents)), _timed(lambda: _copy(rows))  # noqa: B023
            if not warm:
                ours.append(taken[0])
                floors.append(taken[1])
    mine, floor = statistics.median(ours), statistics.median(floors)
    reached, speed = floor / mine, count / mine
    target = f">= {ratio:.2f}x" + (f", >= {rate // 1000} k/s" if rate else "")
    return Figure(
        name,
        _rate(count, size, mine),
        _rate(count, size, floor),
        reached,
        target,
        reached >= ratio and speed >= rate,
    )


def _record(size: int, count: int) -> tuple[list[bytes], Callable[[list[bytes]], None]]:
    """Return contents of one run's output, and what stores them as the recorder does."""
    from runs.record import store
    from tests.runs.record_factory import Source, make_run

    run = make_run()
    source = Source(run)
    source.open()
    process = source.process()
    source.append()
    # Bytes that do not compress: the floor's table must not gain from them either.
    pool = os.urandom(1 << 20)
    for number in range(count):
        start = number * 61 % (len(pool) - size)
        source.output(process, pool[start : start + size])
    per_batch = min(store.BATCH_EVENTS, store.BATCH_BYTES // size)

    def append(contents: list[bytes]) -> None:
        for start in range(0, len(contents), per_batch):
            store.append(run.number, source.source_id, contents[start : start + per_batch])

    return source.waiting, append


def _binary(path: Path, contents: list[bytes]) -> Path:
    """Write the same rows as ``COPY`` takes them, and make the floor's empty table."""
    from django.db import connection

    from runs.record.ingest import new_rows as rows
    from runs.record.ingest.batch import Batch
    from runs.record.ingest.derived import Derived

    batch = Batch(1, 0, 0, 1, bytes(32), False, Derived(0, {}, {}))
    with path.open("wb") as file:
        file.write(rows.HEADER)
        file.writelines(batch.rows(contents))
        file.write(rows.TRAILER)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {FLOOR}")
        cursor.execute(f"CREATE TABLE {FLOOR} (LIKE run_event INCLUDING STORAGE)")
        cursor.execute(f"ALTER TABLE {FLOOR} ADD PRIMARY KEY (run_number, sequence)")
    return path


def _copy(rows: Path) -> None:
    from django.db import connection

    told = connection.get_connection_params()
    environment = os.environ | {
        "PGHOST": str(told.get("host", "")),
        "PGPORT": str(told.get("port", "")),
        "PGUSER": str(told.get("user", "")),
        "PGPASSWORD": str(told.get("password", "")),
        "PGDATABASE": str(told["dbname"]),
    }
    command = f"\\copy {FLOOR} FROM '{rows}' WITH (FORMAT binary)"
    subprocess.run(
        ["psql", "-q", "-v", "ON_ERROR_STOP=1", "-c", command],
        env={name: value for name, value in environment.items() if value},
        check=True,
    )


def _timed(work: Callable[[], None]) -> float:
    """Return how long ``work`` takes, with what earlier work left to write out of the way."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _rate(count: int, size: int, seconds: float) -> str:
    return f"{count / seconds / 1000:.1f} k/s, {count * size / seconds / 1e6:.0f} MB/s"
