"""Writers that meet at one record, and transactions that end half-way: each event exactly once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import DatabaseError, connection, connections, transaction

from runs.models import PARTITION_RUNS, Run, RunEvent, RunHead, RunLoss
from runs.record import store
from runs.record.verify import verify_run
from tests.runs.agent.booted import eventually
from tests.runs.record_factory import Source, make_run
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def in_threads() -> Callable[..., list[object]]:
    """Runs functions at once, each on a connection of its own; returns what came of each."""

    def run(*works: Callable[[], object]) -> list[object]:
        gate = threading.Barrier(len(works))

        def one(work: Callable[[], object]) -> object:
            try:
                gate.wait()
                return work()
            except store.StoreError as exc:
                return exc
            finally:
                connections.close_all()

        with ThreadPoolExecutor(len(works)) as pool:
            return list(pool.map(one, works))

    return run


def told(run: Run, chunks: int) -> Source:
    source = Source(run)
    source.open()
    source.started()
    process = source.process()
    for number in range(chunks):
        source.output(process, b"%d\n" % number)
    source.exited(process)
    source.sealed()
    return source


def test_two_recorders_at_once_store_each_event_once(
    in_threads: Callable[..., list[object]],
) -> None:
    run = make_run()
    source = told(run, 200)

    def recorder(size: int) -> Callable[[], int]:
        def work() -> int:
            stored = 0
            for start in range(0, len(source.contents), size):
                batch = source.contents[start : start + size]
                stored += store.append(run.number, source.source_id, batch).events
            return stored

        return work

    first, second = in_threads(recorder(7), recorder(11))
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert first + second == len(source.contents)
    assert RunEvent.objects.filter(run_number=run.number).count() == len(source.contents)
    assert not RunLoss.objects.filter(run_number=run.number).exists()
    run.refresh_from_db()
    assert run.status == "completed"
    assert verify_run(run).ok


def test_two_that_open_and_two_that_close_agree(
    in_threads: Callable[..., list[object]],
) -> None:
    run = make_run()
    source = told(run, 3)
    source.append()
    other = make_run()
    Source(other).open()

    def close() -> bool:
        return store.close_early(other.number, reason="container-gone", detail="gone")

    assert sorted(in_threads(close, close, close), key=str) == [False, False, True]
    assert RunLoss.objects.filter(run_number=other.number).count() == 1
    assert RunEvent.objects.filter(run_number=other.number).count() == 1
    assert verify_run(other).ok


def test_the_end_by_the_agent_and_by_the_control_plane_is_one_end(
    in_threads: Callable[..., list[object]],
) -> None:
    for _ in range(5):
        run = make_run()
        source = told(run, 3)
        number, name, contents = run.number, source.source_id, source.contents
        in_threads(
            lambda number=number, name=name, contents=contents: store.append(
                number, name, contents
            ),
            lambda number=number: store.close_early(number, reason="recorder-lost", detail=""),
        )
        ends = RunEvent.objects.filter(run_number=run.number, kind=18)
        assert ends.count() == 1
        run.refresh_from_db()
        assert run.status in {"completed", "failed"}
        assert verify_run(run).ok


def test_a_batch_that_is_not_committed_leaves_nothing_and_comes_again() -> None:
    run = make_run()
    source = told(run, 50)
    with transaction.atomic():
        store.append(run.number, source.source_id, source.contents)
        transaction.set_rollback(True)
    assert not RunEvent.objects.filter(run_number=run.number).exists()
    assert RunHead.objects.get(pk=run.number).last_sequence == 0
    assert source.open() == 0
    assert source.append().events == len(source.contents)
    assert verify_run(run).ok


def test_a_connection_that_is_cut_raises_as_djangos_errors_do_and_loses_nothing() -> None:
    run = make_run()
    source = told(run, 50)
    parameters = connection.get_connection_params()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    keys = ("dbname", "user", "password", "host", "port")
    chosen = {key: parameters[key] for key in keys if key in parameters}
    with psycopg.connect(**chosen, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    with pytest.raises(DatabaseError):
        store.append(run.number, source.source_id, source.contents)
    connection.close()
    assert source.append().events == len(source.contents)
    assert verify_run(run).ok


def test_commits_are_announced() -> None:
    run = make_run()
    source = told(run, 3)
    connection.ensure_connection()
    parameters = connection.get_connection_params()
    keys = ("dbname", "user", "password", "host", "port")
    chosen = {key: parameters[key] for key in keys if key in parameters}
    with psycopg.connect(**chosen, autocommit=True) as listener:
        listener.execute(f"LISTEN {store.CHANNEL}")
        source.append()
        (notice,) = listener.notifies(timeout=LONG_WAIT, stop_after=1)
    assert f'"runNumber": {run.number}' in notice.payload
    assert f'"lastSequence": {len(source.contents)}' in notice.payload


def test_a_run_number_of_a_partition_that_is_not_there_gets_one() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval('run_number_seq', nextval('run_number_seq') + 5000)")
    run = make_run()
    source = told(run, 1)
    source.append()
    assert verify_run(run).ok


def test_two_that_need_the_same_new_partition_get_one(
    in_threads: Callable[..., list[object]],
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('run_number_seq')")
        part = cursor.fetchone()[0] // PARTITION_RUNS + 2
        cursor.execute("SELECT setval('run_number_seq', %s)", [part * PARTITION_RUNS - 1])
    first_has_made_it, ended = threading.Event(), []

    def first() -> None:
        with transaction.atomic():
            make_run()
            first_has_made_it.set()
            # The second one waits for the lock by now, having seen that there is no partition.
            eventually(waits_for_advisory_lock)
        ended.append("first")

    def second() -> None:
        first_has_made_it.wait(LONG_WAIT)
        make_run()
        ended.append("second")

    in_threads(first, second)
    assert sorted(ended) == ["first", "second"]
    runs = Run.objects.filter(number__gte=part * PARTITION_RUNS)
    assert runs.count() == 2
    for run in runs:
        told(run, 1).append()
        assert verify_run(run).ok


def waits_for_advisory_lock() -> bool:
    """Whether somebody in this database does."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return bool(cursor.fetchone()[0])
