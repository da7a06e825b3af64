"""Records that cannot be written to, however many, keep no other waiting, and no policy."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from runs.models import Run, RunHead
from runs.record import egress_decisions
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    hosts,
    network_of,
    recorded,
    with_policy,
)
from tests.workspaces.egress.decided.live_proxy import live_proxy
from workspaces.egress import known_networks
from workspaces.egress.decided import journal as journals
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.settling import THREADS
from workspaces.models import Attempt, EgressNetwork

pytestmark = pytest.mark.django_db(transaction=True)

MANY = 8 * THREADS


@contextmanager
def held(runs: Collection[Run]) -> Iterator[None]:
    """Have somebody else write to these records."""
    holds, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            numbers = [run.number for run in runs]
            list(RunHead.objects.select_for_update().filter(pk__in=numbers))
            holds.set()
            done.wait(10 * LONG_WAIT)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert holds.wait(LONG_WAIT)
    try:
        yield
    finally:
        done.set()
        holder.join()


def waiting_for_locks() -> int:
    """How many sessions wait for what somebody else holds."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return int(cursor.fetchone()[0])


def is_settled(attempt: Attempt) -> bool:
    return network_of(attempt).settled_at is not None


def test_many_records_that_are_held_keep_no_other_from_being_settled(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever is patient waits for a held one until the end of the test.
    monkeypatch.setattr(egress_decisions, "LOCK_MS", int(20 * LONG_WAIT * 1000))
    monkeypatch.setattr(known_networks, "LOOK_SECONDS", 0.01)
    faulty = [with_policy(journal.id) for _ in range(MANY)]
    attempt, run = with_policy(journal.id)
    for each in (*(one for one, _ in faulty), attempt):
        journal.add(decision(each.pk))
    with live_proxy(journal):
        with held([one for _, one in faulty]):
            for each, _ in faulty:
                EgressNetwork.objects.end(each.pk)
            eventually(lambda: waiting_for_locks() >= THREADS, what="threads wait for held ones")
            EgressNetwork.objects.end(attempt.pk)
            eventually(lambda: is_settled(attempt), what="the other one is settled")
            assert hosts(run) == [("a.test", 1)]
            assert not any(is_settled(each) for each, _ in faulty)
        eventually(lambda: all(is_settled(each) for each, _ in faulty), what="all are settled")
    assert all(hosts(one) == [("a.test", 1)] for _, one in faulty)


def test_many_records_that_are_held_come_after_all_others_in_the_next_pass(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_decisions, "LOCK_MS", 50)
    monkeypatch.setattr("workspaces.egress.decided.unstored.RETRY_SECONDS", (0.0, 0.0))
    faulty = [with_policy() for _ in range(MANY)]
    attempt, run = with_policy()
    for each, _ in faulty:
        journal.add(decision(each.pk))
    with held([one for _, one in faulty]):
        for _ in range(MANY):
            journal.flush()
        journal.add(decision(attempt.pk))
        journal.flush()
        assert hosts(run) == [("a.test", 1)]
    journal.flush()
    assert all(recorded(one) for _, one in faulty)


def test_what_a_killed_proxy_left_of_a_record_is_settled_whatever_else_it_has_left(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_decisions, "LOCK_MS", 50)
    faulty = [with_policy(journal.id) for _ in range(MANY)]
    attempt, run = with_policy(journal.id)
    for each in (*(one for one, _ in faulty), attempt):
        journal.add(decision(each.pk))
    journal.abandon()
    following = Journal(journal._root)
    try:
        with held([one for _, one in faulty]):
            following.close(attempt.pk)
            assert following.settle(attempt.pk)
            assert hosts(run) == [("a.test", 1)]
    finally:
        following.abandon()


def test_what_a_killed_proxy_left_is_stored_and_served_on_whatever_else_is_held(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_decisions, "LOCK_MS", 50)
    monkeypatch.setattr(journals, "LEFT_RETRY_SECONDS", 0.0)
    faulty = [with_policy(journal.id) for _ in range(MANY)]
    attempt, run = with_policy(journal.id)
    for each in (*(one for one, _ in faulty), attempt):
        journal.add(decision(each.pk))
    journal.abandon()
    following = Journal(journal._root)
    try:
        with held([one for _, one in faulty]):
            following.recover()
            assert hosts(run) == [("a.test", 1)]
            assert network_of(attempt).served_by == following.id
            following.recover()
        for _ in range(2):
            following.recover()
        assert all(hosts(one) == [("a.test", 1)] for _, one in faulty)
    finally:
        following.abandon()
