"""What many readers of streams cost: how soon they get an event, memory, and events per second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import psycopg
from django.db import connection

from tests.bench.figures import PERCENTILES, Figure, log_folder, milliseconds
from tests.runs.record_factory import Source, make_run
from tests.runs.streaming.event_stream import Follower
from tests.runs.streaming.stream_history import Reader, follow_all
from tests.stack.api_process import ApiProcess, api_process
from tests.stack.worker_process import environment

READERS = 500
COMMITS = 200
REPLAYED = 10_000
REPLAYERS = 50
MOST_BYTES = 64 * 1024
ROOM = {"SVC_API_MAX_CONNECTIONS": "4000", "SVC_API_MAX_CONNECTIONS_PER_ADDRESS": "4000"}


def measure() -> Iterator[Figure]:
    """Yield the figures, measured in the default database."""
    log = log_folder() / "streams.log"
    with api_process(log, **ROOM) as api:
        yield from _commit_to_socket(api)
    with api_process(log, **ROOM) as api:
        yield _memory(api, "that wait for events", stuck=False)
    with api_process(log, **ROOM, SVC_API_WRITE_TIMEOUT_MS="600000") as api:
        yield _memory(api, "that take nothing", stuck=True)
    with api_process(log, **ROOM) as api:
        yield _replay(api)


def _begun() -> tuple[Source, int]:
    source = Source(make_run())
    source.open()
    source.started()
    process = source.process()
    source.append()
    return source, process


def _path(source: Source) -> str:
    return f"/v1/runs/{source.run.pk}/stream"


def _commit_to_socket(api: ApiProcess) -> Iterator[Figure]:
    """Compare a reader of the stream with who only listens to the announcement."""
    source, process = _begun()
    ours, floor = [], []
    with (
        psycopg.connect(environment()["DATABASE_URL"], autocommit=True) as listener,
        Follower(api.port, _path(source)) as follower,
    ):
        listener.execute("LISTEN run_events")
        while follower.parser.last_id != "2":
            follower.receive()
        for number in range(COMMITS):
            source.output(process, b"%d\n" % number)
            source.append()
            began = time.perf_counter()
            if number % 2:
                next(listener.notifies(stop_after=1))
                floor.append(time.perf_counter() - began)
                follower.receive()
            else:
                follower.receive()
                ours.append(time.perf_counter() - began)
                next(listener.notifies(stop_after=1))
    for name, of in PERCENTILES.items():
        yield Figure(
            f"committed to the reader's socket, {name}",
            milliseconds(of(ours)),
            f"bare LISTEN {milliseconds(of(floor))}",
            of(ours) / of(floor),
            "",
            True,
        )


def _memory(api: ApiProcess, what: str, *, stuck: bool) -> Figure:
    """Compare the memory of the process before and after many readers of runs of their own."""
    sources = [_begun()[0] for _ in range(READERS)]
    for source in sources if stuck else []:
        for _ in range(40):
            source.output(1, b"x" * 20_000)
        source.append()
    # What is loaded with the first stream is no reader's cost.
    with Follower(api.port, _path(sources[0])) as follower:
        follower.receive()
    before = api.resident_bytes()
    followers = [Follower(api.port, _path(source)) for source in sources]
    try:
        for follower in followers:
            follower.read_head()
            while not stuck and follower.parser.last_id != "2":
                follower.receive()
        used = before
        while True:  # until it grows no more
            time.sleep(2)
            last, used = used, api.resident_bytes()
            if used <= last:
                break
    finally:
        for follower in followers:
            follower.close()
    each = (used - before) / READERS
    return Figure(
        f"memory of each of {READERS} readers {what}",
        f"{each / 1024:.1f} KiB",
        "",
        None,
        f"<= {MOST_BYTES // 1024} KiB",
        each <= MOST_BYTES,
    )


def _replay(api: ApiProcess) -> Figure:
    """Have many readers replay one run at once; its SQL and its bytes through one are the floor."""
    source, process = _begun()
    for number in range(REPLAYED):
        source.output(process, b"line %d of the output\n" % number)
    source.exited(process)
    source.sealed()
    source.append()
    connection.close()
    random = Random(1)
    took = []
    for count in (1, REPLAYERS):
        readers = [Reader(api.port, _path(source), [], random) for _ in range(count)]
        began = time.perf_counter()
        follow_all(readers, lambda: False, seconds=600)
        took.append((time.perf_counter() - began) / count)
    alone, shared = (REPLAYED / seconds for seconds in took)
    return Figure(
        f"replay by {REPLAYERS} readers at once, events per second of all",
        f"{shared:,.0f}",
        f"one reader {alone:,.0f}",
        shared / alone,
        "",
        True,
    )
