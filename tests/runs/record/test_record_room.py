"""What an owner's records take: exact at every moment, and nobody waits for anybody."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from django.db.models.functions import Now

from runs.models import Run, RunHead, RunOwner
from runs.record.retention import prunable, prune
from runs.record.room import taken_by
from tests.runs.killed import Killed, killed_before
from tests.runs.record_factory import OWNER, Source, make_run, record
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)


def held_by_heads(owner: str) -> int:
    heads = RunHead.objects.filter(owner_user_id=owner, removed_at__isnull=True)
    return heads.aggregate(total=Sum("stored_bytes"))["total"] or 0


def begun(owner: str = OWNER) -> Source:
    source = Source(make_run(owner_user_id=owner))
    source.open()
    source.started()
    source.process()
    source.append()
    return source


def test_records_count_from_their_first_event_until_they_are_removed() -> None:
    assert taken_by(OWNER) == 0
    source = begun()
    going_on = taken_by(OWNER)
    assert going_on == held_by_heads(OWNER) > 0
    source.output(1, b"x" * 1000)
    source.exited(1)
    source.sealed()
    source.append()
    sealed = taken_by(OWNER)
    assert sealed == held_by_heads(OWNER) > going_on + 1000
    record(make_run(owner_user_id="usr_other"))
    begun("usr_other")
    assert taken_by(OWNER) == sealed
    Run.objects.filter(pk=source.run.pk).update(finished_at=Now() - timedelta(days=1))
    prune(prunable(run_id=source.run.pk))
    assert taken_by(OWNER) == 0
    assert taken_by("usr_other") == held_by_heads("usr_other") > 0


def test_a_removal_that_is_cut_off_gives_nothing_back_and_one_that_is_done_only_once() -> None:
    first, second = make_run(), make_run()
    record(first)
    record(second)
    before = taken_by(OWNER)
    with pytest.raises(Killed), killed_before('UPDATE "run_head"'):
        prune([first.number])
    assert taken_by(OWNER) == before == held_by_heads(OWNER)
    prune([first.number])
    prune([first.number])
    assert taken_by(OWNER) == RunHead.objects.get(pk=second.number).stored_bytes


def test_of_any_number_of_writers_nothing_is_lost_and_no_reader_sees_less_than_before() -> None:
    sources = [begun() for _ in range(12)]
    done = threading.Event()

    def write(source: Source) -> None:
        try:
            for _ in range(5):
                source.output(1, b"y" * 100)
                source.append()
            source.exited(1)
            source.sealed()
            source.append()
        finally:
            connection.close()

    def watch() -> list[int]:
        seen = []
        try:
            while not done.is_set():
                seen.append(taken_by(OWNER))
        finally:
            connection.close()
        return seen

    with ThreadPoolExecutor(5) as pool:
        watched = pool.submit(watch)
        try:
            for work in [pool.submit(write, source) for source in sources]:
                work.result(LONG_WAIT)
        finally:
            done.set()
        seen = watched.result(LONG_WAIT)
    assert seen == sorted(seen)
    assert taken_by(OWNER) == held_by_heads(OWNER)
    assert RunOwner.objects.get(pk=OWNER).sealed_bytes == taken_by(OWNER)


def test_a_removal_and_an_end_of_the_same_owner_that_wait_for_each_other_are_both_counted() -> None:
    source, gone = begun(), make_run()
    record(gone)
    stored, removal_waits = threading.Event(), threading.Event()

    def end() -> None:
        try:
            with transaction.atomic():
                source.sealed()
                source.append()
                stored.set()
                assert removal_waits.wait(LONG_WAIT)
        finally:
            connection.close()

    def remove() -> None:
        try:
            prune([gone.number])
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        ending = pool.submit(end)
        assert stored.wait(LONG_WAIT)
        removing = pool.submit(remove)
        try:
            eventually(somebody_waits, what="the removal waits")
        finally:
            removal_waits.set()
        ending.result(LONG_WAIT)
        removing.result(LONG_WAIT)
    assert taken_by(OWNER) == held_by_heads(OWNER) > 0


def somebody_waits() -> bool:
    """Whether a transaction of this database waits for another one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        (waiting,) = cursor.fetchone()
    return bool(waiting)


def test_a_batch_that_is_not_committed_yet_holds_up_no_other_run_of_the_owner() -> None:
    slow, quick = begun(), begun()
    stored, other_is_done = threading.Event(), threading.Event()

    def store_slowly() -> None:
        try:
            with transaction.atomic():
                slow.output(1, b"z" * 100)
                slow.append()
                stored.set()
                assert other_is_done.wait(LONG_WAIT)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(store_slowly)
        assert stored.wait(LONG_WAIT)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '60s'")
            quick.output(1, b"z" * 100)
            quick.exited(1)
            quick.sealed()
            quick.append()
            assert taken_by(OWNER) == held_by_heads(OWNER)
        finally:
            other_is_done.set()
            connection.close()
        work.result(LONG_WAIT)
    assert taken_by(OWNER) == held_by_heads(OWNER)
