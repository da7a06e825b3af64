"""When a journal tries again what it could not store, and whose decisions wait for whom."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection

from runs.record.egress_decisions import EgressDecisions
from tests.workspaces.egress.conftest import Clock
from tests.workspaces.egress.decided.decided_rows import decision, hosts, with_policy
from tests.workspaces.egress.decided.refusing import Refusing
from workspaces.egress.decided import journal as journals
from workspaces.egress.decided import sums, unstored
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.keeping import Pass

pytestmark = pytest.mark.django_db


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [OperationalError("it is away"), ZeroDivisionError()])
def test_a_record_that_cannot_be_written_to_is_left_alone_longer_each_time_but_not_for_ever(
    journal: Journal, database: Refusing, clock: Clock, error: Exception
) -> None:
    attempt, run = with_policy()
    database.refused, database.error = {attempt.pk}, error
    journal.add(decision(attempt.pk))
    for pause in (1, 2, 4, 8, 16, 32, 60, 60):
        journal.flush()
        assert database.asked_now() == [attempt.pk]
        clock.now += pause - 0.5
        journal.flush()
        assert database.asked_now() == []
        clock.now += 0.5
    database.refused = set()
    journal.flush()
    assert hosts(run) == [("a.test", 1)]
    assert database.patient
    database.refused = {attempt.pk}
    journal.add(decision(attempt.pk))
    journal.flush()
    assert not database.patient, "it was stored the last time"
    clock.now += 1
    database.asked_now()
    journal.flush()
    assert database.asked_now() == [attempt.pk], "it begins with a short pause again"


@pytest.mark.django_db(transaction=True)
def test_a_pass_that_could_not_be_stored_is_tried_again_whatever_is_held_for_want_of_room(
    journal: Journal, database: Refusing, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "AT_ONCE", 1)
    attempt, run = with_policy()
    database.refused = {attempt.pk}
    journal.add(decision(attempt.pk))
    journal.flush()
    for name in ("b.test", "c.test"):
        journal.add(decision(attempt.pk, name))
    database.refused = set()
    clock.now += 1
    journal.flush()
    journal.flush()
    assert hosts(run) == [("a.test", 1)]


def test_an_error_that_nobody_thought_of_keeps_no_other_record_waiting(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unstored, "RETRY_SECONDS", (0.0, 0.0))
    odd, odd_run = with_policy()
    other, other_run = with_policy()
    real = EgressDecisions.store

    def store_(records: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
        if decided.attempt_id == odd.pk:
            raise ZeroDivisionError
        return real(records, decided, patient=patient)

    with monkeypatch.context() as patched:
        patched.setattr(EgressDecisions, "store", store_)
        journal.add(decision(odd.pk))
        journal.add(decision(other.pk))
        journal.flush()
    assert hosts(other_run) == [("a.test", 1)]
    assert hosts(odd_run) == []
    journal.flush()
    assert hosts(odd_run) == [("a.test", 1)]


@pytest.mark.django_db(transaction=True)
def test_of_its_own_records_it_also_tries_no_more_than_three_that_cannot_be_written_to(
    journal: Journal, database: Refusing, clock: Clock
) -> None:
    attempts = [with_policy()[0] for _ in range(4)]
    database.refused = {attempt.pk for attempt in attempts}
    for attempt in attempts:
        journal.add(decision(attempt.pk))
    journal.flush()
    assert database.asked_now() == [attempt.pk for attempt in attempts[:3]]
    clock.now += 1
    journal.flush()
    assert database.asked_now() == [attempts[place].pk for place in (3, 0, 1)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_left", [False, True])
def test_records_that_somebody_else_holds_cost_no_time_until_they_are_waited_for(
    journal: Journal, following: Journal, database: Refusing, clock: Clock, is_left: bool
) -> None:
    attempts = [with_policy()[0] for _ in range(5)]
    database.hold(attempts)
    for attempt in attempts:
        journal.add(decision(attempt.pk))
    if is_left:
        journal.abandon()
    pass_over_all = following.recover if is_left else journal.flush
    pass_over_all()
    assert (len(database.asked_now()), database.patient) == (5, False)
    pass_over_all()
    assert database.asked_now() == []
    clock.now += journals.LEFT_RETRY_SECONDS
    pass_over_all()
    assert (len(database.asked_now()), database.patient) == (3, True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_left", [False, True])
def test_a_connection_that_is_lost_costs_no_other_record_its_turn(
    journal: Journal, following: Journal, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    told = [with_policy() for _ in range(2)]
    for attempt, _ in told:
        journal.add(decision(attempt.pk))
    if is_left:
        journal.abandon()
    real = EgressDecisions.store

    def store_(records: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
        if decided.attempt_id == told[0][0].pk:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return real(records, decided, patient=patient)

    monkeypatch.setattr(EgressDecisions, "store", store_)
    (following.recover if is_left else journal.flush)()
    assert hosts(told[1][1]) == [("a.test", 1)]


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_was_lost_between_passes_costs_the_next_one_nothing(
    journal: Journal,
) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk))
    with pytest.raises(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    journal._guarded()
    assert hosts(run) == [("a.test", 1)]


@pytest.mark.django_db(transaction=True)
def test_a_proxy_that_stops_stores_all_that_waits(
    journal: Journal, database: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "AT_ONCE", 1)
    monkeypatch.setattr(sums, "PER_HOUR", 0)
    attempt, run = with_policy()
    held, held_run = with_policy()
    with Journal(journal._root) as stopping:
        database.refused = {attempt.pk}
        stopping.add(decision(attempt.pk))
        stopping.flush()
        stopping.add(decision(attempt.pk, "b.test"))
        for name in ("a.test", "b.test"):
            stopping.add(decision(held.pk, name))
        database.refused = set()
    assert hosts(run) == [("a.test", 1), ("-", 1)]
    assert hosts(held_run) == [("a.test", 1), ("-", 1)]


@pytest.mark.django_db(transaction=True)
def test_a_disk_that_makes_nothing_durable_keeps_no_record_waiting(
    journal: Journal, database: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    attempt, _ = with_policy()
    other, run = with_policy()
    database.refused = {attempt.pk}
    journal.add(decision(attempt.pk))
    journal._kept[attempt.pk]._next(journal.id)
    for each in (attempt, other):
        journal.add(decision(each.pk))
    journal.flush()
    assert hosts(run) == [("a.test", 1)]
