"""Reading records, against the same SQL through the bare driver.

A page of the timeline is what makes its JSON out of the log; beside it stands the whole request,
with routing, checks of parameters and the run's own row, for which there is no target. The floor is
the statement of the page, with nothing made of its rows. Scrollback is a whole streamed answer; its
floor is the driver streaming the same rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from django.conf import settings
from django.db import connection
from psycopg import Cursor, ServerCursor

from tests.bench.figures import Figure, milliseconds

EVENTS = 1_000_000
PAGE = 500
PAGES = 151
STREAM_BYTES = 100 * 1024**2
CHUNK_BYTES = 32 * 1024
STREAMS = 7
EXTRA_MEMORY = 32 * 1024**2

# Nine chunks, then a change of a file: what an agent at work in a repository tells.
_COLUMNS = """
    run_number, sequence, kind, process_number, stream, stream_offset, length, wall_us,
    monotonic_ns, method, confidence, link, meta, body
"""
_LINK = "decode('0011223344556677', 'hex')"
_CHANGE = """
    convert_to('{"change":"modified","path":"src/file' || n || '.py",'
        '"root":"/workspace/repo","type":"file","size":1234}', 'UTF8')
"""
_EVENTS = f"""
    INSERT INTO run_event ({_COLUMNS})
    SELECT %(run)s, n, 4, 1, 2, n * 64, 64, 1750000000000000 + n * 1000, n::bigint * 1000000, 1, 1,
        {_LINK}, '', decode(repeat('61', 64), 'hex')
    FROM generate_series(1, %(events)s) n WHERE n %% 10 > 0
    UNION ALL
    SELECT %(run)s, n, 9, 0, 0, 0, 0, 1750000000000000 + n * 1000, n::bigint * 1000000, 5, 1,
        {_LINK}, {_CHANGE}, ''
    FROM generate_series(1, %(events)s) n WHERE n %% 10 = 0
"""  # noqa: S608
_STREAM = f"""
    INSERT INTO run_event ({_COLUMNS})
    SELECT %(run)s, n, 4, 1, 2, (n - 1) * %(size)s, %(size)s, 0, 0, 1, 1, {_LINK}, '',
        decode(repeat(lpad(to_hex(n %% 256), 2, '0'), %(size)s), 'hex')
    FROM generate_series(1, %(chunks)s) n
"""  # noqa: S608
_SAME_ROWS = """
    SELECT stream_offset, body FROM run_event
    WHERE run_number = %(run)s AND kind = 4 AND process_number = 1 AND stream = 2
    ORDER BY stream_offset
"""


def measure() -> list[Figure]:
    """Return the figures of reading; expects a database of the benchmark's own."""
    settings.ALLOWED_HOSTS = ["*"]
    long_run, streamed_run = _make_run(), _make_run()
    with connection.cursor() as cursor:
        cursor.execute(_EVENTS, {"run": long_run[1], "events": EVENTS})
        chunks = STREAM_BYTES // CHUNK_BYTES
        cursor.execute(_STREAM, {"run": streamed_run[1], "size": CHUNK_BYTES, "chunks": chunks})
        cursor.execute(
            "INSERT INTO run_process (run_number, process_number, leader, argv, cwd, name, streams,"
            " exit_signal, exit_reason) VALUES (%s, 1, true, '{}', '', '', '{}', '', '')",
            [streamed_run[1]],
        )
        cursor.execute("ANALYZE run_event")
    return [*_timeline(*long_run), *_scrollback(*streamed_run)]


def _make_run() -> tuple[uuid.UUID, int]:
    from tests.runs.record_factory import make_run

    run = make_run()
    return run.pk, run.number


def _timeline(run_id: uuid.UUID, number: int) -> list[Figure]:
    from django.test import Client

    from runs.record.reading.timeline import ALL_KINDS, MAX_SEQUENCE, TimelineQuery, timeline_page

    client = Client()
    bare = Cursor(_connection())

    def page(first: int) -> None:
        body = timeline_page(run_id, number, TimelineQuery(first, MAX_SEQUENCE, PAGE))
        assert body.count(b'"eventId"') == PAGE

    def request(first: int) -> None:
        answer = client.get(f"/v1/runs/{run_id}/timeline?fromSequence={first}")
        assert answer.status_code == 200
        assert answer.content.count(b'"eventId"') == PAGE

    def floor(first: int) -> None:
        place = {"run": number, "first": first, "last": first + PAGE + 1, "limit": PAGE + 1}
        assert len(bare.execute(ALL_KINDS, place, binary=True).fetchall()) == PAGE + 1

    last_page = EVENTS - PAGE
    first, first_floor, last, last_floor, whole = _in_turns(
        partial(page, 1),
        partial(floor, 1),
        partial(page, last_page),
        partial(floor, last_page),
        partial(request, 1),
        rounds=PAGES,
    )
    ratio = last / first
    told = (_short(last), f"{_short(first)} the first page", ratio, "<= 1.2x", ratio <= 1.2)
    return [
        _page_figure(f"timeline, first page of {PAGE} events", first, first_floor, 2),
        _page_figure(f"timeline, last page of {PAGE} events", last, last_floor, 2),
        Figure("timeline, last page", *told),
        _page_figure("timeline, whole request of such a page", whole, first_floor, None),
    ]


def _page_figure(name: str, ours: float, floor: float, target: int | None) -> Figure:
    ratio = ours / floor
    told = f"<= {target}x" if target else ""
    met = target is None or ratio <= target
    return Figure(name, _short(ours), f"{_short(floor)} the same SQL", ratio, told, met)


def _scrollback(run_id: uuid.UUID, number: int) -> list[Figure]:
    from django.test import Client

    client = Client()
    path = f"/v1/runs/{run_id}/scrollback?stream=stdout"

    def ours() -> None:
        answer = client.get(path, headers={"accept": "application/octet-stream"})
        assert sum(map(len, answer)) == STREAM_BYTES

    def floor() -> None:
        bare = _connection()
        with bare.transaction(), ServerCursor(bare, "floor") as cursor:
            cursor.itersize = 64
            cursor.execute(_SAME_ROWS, {"run": number}, binary=True)
            assert sum(len(body) for _, body in cursor) == STREAM_BYTES

    taken, floor_taken = _in_turns(ours, floor, rounds=STREAMS)
    extra = _memory_of_a_stream(path)
    return [
        Figure(
            f"scrollback of {STREAM_BYTES >> 20} MiB",
            _rate(taken),
            f"{_rate(floor_taken)} the driver streaming",
            taken / floor_taken,
            "<= 1.5x time",
            taken <= 1.5 * floor_taken,
        ),
        Figure(
            "scrollback, memory beyond the first byte",
            f"{extra / 1024**2:.1f} MiB",
            "",
            None,
            "<= 32 MiB",
            extra <= EXTRA_MEMORY,
        ),
    ]


def _in_turns(*calls: Callable[[], Any], rounds: int) -> list[float]:
    """Return the median of each, measured in turns so that all see the same machine."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(rounds):
        for measured, call in zip(times, calls, strict=True):
            start = time.perf_counter()
            call()
            measured.append(time.perf_counter() - start)
    return [median(measured) for measured in times]


def _memory_of_a_stream(path: str) -> int:
    """Return by how much a fresh process grows between the first and the last byte of a stream."""
    environment = {**os.environ, "BENCH_DATABASE": connection.settings_dict["NAME"]}
    argv = [sys.executable, "-m", "tests.bench.record_reading", path]
    told = subprocess.run(argv, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return int(told.stdout.split()[-1])


def _stream_and_tell_growth(path: str) -> None:
    connection.settings_dict["NAME"] = os.environ["BENCH_DATABASE"]
    settings.ALLOWED_HOSTS = ["*"]
    from django.test import Client

    client = Client()
    client.get(path, headers={"accept": "application/json"})
    pieces = iter(client.get(path, headers={"accept": "application/octet-stream"}))
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    before = _highest_memory()
    assert sum(map(len, pieces)) == STREAM_BYTES
    sys.stdout.write(f"{_highest_memory() - before}\n")


def _highest_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (highest,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(highest) * 1024


def _connection() -> Any:
    connection.ensure_connection()
    return connection.connection


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _rate(seconds: float) -> str:
    return f"{milliseconds(seconds)} ({STREAM_BYTES / 1024**2 / seconds:.0f} MiB/s)"


if __name__ == "__main__":  # the fresh process of a stream
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    import django

    django.setup()
    _stream_and_tell_growth(sys.argv[1])
