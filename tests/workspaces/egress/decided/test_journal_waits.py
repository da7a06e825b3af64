"""When a journal tries again what it could not store, and whose decisions wait for whom."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from django.db import OperationalError, connection, connections
from psycopg.errors import LockNotAvailable

from runs.agent.record.frames import Confidence, Kind, Method
from runs.models import Run, RunEvent, RunHead, RunLoss
from runs.record import egress_decisions, egress_endings, store
from runs.record.egress_decisions import DAMAGED, NOT_NAMED, UPGRADED, EgressDecisions
from tests.runs.executable import make_executable
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.conftest import Clock
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    network_of,
    recorded,
    with_policy,
)
from workspaces.egress.decided import journal as journals
from workspaces.egress.decided import serving, sums, unstored
from workspaces.egress.decided import settling as settlings
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.keeping import Pass
from workspaces.egress.decided.settling import THREADS, Settling
from workspaces.egress.decided.sums import Line, line_of
from workspaces.egress.decided.unstored import RecordEnded
from workspaces.models import Attempt, EgressNetwork

pytestmark = pytest.mark.django_db


class Refusing:
    """A database that refuses records, and the attempts for which it was asked.

    ``error`` is what it answers, and ``patient`` whether who asked last would have waited.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[UUID] = []
        self.refused: set[UUID] = set()
        self.error: Exception = OperationalError("the database is away")
        self.patient: bool | None = None
        real = EgressDecisions.store

        def store_(records: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
            self.asked.append(decided.attempt_id)
            self.patient = patient
            if decided.attempt_id in self.refused:
                raise self.error
            return real(records, decided, patient=patient)

        monkeypatch.setattr(EgressDecisions, "store", store_)

    def asked_now(self) -> list[UUID]:
        """Return for which attempts it was asked since the last look."""
        asked, self.asked = self.asked, []
        return asked

    def hold(self, attempts: list[Attempt]) -> None:
        """Have somebody else write to the records of these."""
        self.refused = {attempt.pk for attempt in attempts}
        self.error = OperationalError("canceling statement due to lock timeout")
        self.error.__cause__ = LockNotAvailable()


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    return Refusing(monkeypatch)


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Journal]:
    """The journal of the proxy that comes next."""
    following = Journal(tmp_path / "egress-journal")
    yield following
    following.abandon()


@pytest.fixture
def settling(journal: Journal, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settling]:
    """What settles the networks of a proxy, by the clock of the test."""
    monkeypatch.setattr(settlings, "time", clock)
    settling = Settling(journal)
    yield settling
    settling.stop()


def tried(settling: Settling, attempt: Attempt) -> None:
    """Have it go on with one attempt, and what it begins end."""
    settling.go_on([attempt.pk])
    settling._tries[attempt.pk].done.result(LONG_WAIT)


# ---------------------------------------------------------------- tried again


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
def test_a_record_of_a_killed_proxy_is_left_alone_for_a_while_with_all_its_passes(
    journal: Journal, following: Journal, database: Refusing, clock: Clock
) -> None:
    attempt, run = with_policy()
    database.refused = {attempt.pk}
    for host in ("a.test", "b.test"):
        journal.add(decision(attempt.pk, host))
        journal._of(attempt.pk)._next(journal.id)
        journal._of(attempt.pk)._frozen = None
    journal.abandon()
    following.recover()
    assert database.asked_now() == [attempt.pk], "what comes behind it has to wait"
    database.refused = set()
    following.recover()
    clock.now += 9.5
    following.recover()
    assert database.asked_now() == []
    assert not database.patient
    clock.now += 0.5
    following.recover()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]
    assert following._left == {}


@pytest.mark.django_db(transaction=True)
def test_a_record_that_is_about_to_end_is_tried_at_once(
    journal: Journal, following: Journal, database: Refusing, clock: Clock
) -> None:
    attempt, run = with_policy(journal.id)
    other, other_run = with_policy(journal.id)
    database.refused = {attempt.pk, other.pk}
    for each in (attempt, other):
        journal.add(decision(each.pk))
    (journal._folder / f"{attempt.pk}.9.new").write_text("half of it")
    journal.abandon()
    following.recover()
    database.asked_now()
    database.refused = set()
    serving.take(network_of(attempt).pk, attempt.pk, following.id)
    following.close(attempt.pk)
    assert following.settle(attempt.pk, patient=False)
    assert hosts(run) == [("a.test", 1)]
    assert (database.asked_now(), database.patient) == ([attempt.pk], True)
    assert network_of(other).served_by == journal.id, "its decisions are not stored"
    clock.now += journals.LEFT_RETRY_SECONDS
    following.recover()
    assert hosts(other_run) == [("a.test", 1)]


@pytest.mark.django_db(transaction=True)
def test_after_three_records_that_cannot_be_written_to_a_pass_goes_no_further(
    journal: Journal, following: Journal, database: Refusing, clock: Clock
) -> None:
    attempts = [with_policy()[0] for _ in range(4)]
    database.refused = {attempt.pk for attempt in attempts}
    for attempt in attempts:
        journal.add(decision(attempt.pk))
    journal.abandon()
    following.recover()
    assert database.asked_now() == [attempt.pk for attempt in attempts[:3]]
    following.recover()
    assert database.asked_now() == [attempts[3].pk], "the others come last"
    assert journal._folder.is_dir()


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
def test_what_one_proxy_could_not_store_the_next_one_does(
    journal: Journal, following: Journal, database: Refusing
) -> None:
    attempt, run = with_policy()
    database.refused = {attempt.pk}
    journal.add(decision(attempt.pk))
    journal.abandon()
    following.recover()
    following.abandon()
    database.refused = set()
    with Journal(journal._root):
        pass
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


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_settled_is_tried_again_patiently_and_ever_less_often(
    journal: Journal, database: Refusing, clock: Clock, settling: Settling
) -> None:
    attempt, run = with_policy(journal.id)
    EgressNetwork.objects.end(attempt.pk)
    journal.close(attempt.pk)
    journal.add(decision(attempt.pk, allowed=False))
    database.refused = {attempt.pk}
    tried(settling, attempt)
    assert (database.asked_now(), database.patient) == ([attempt.pk], False)
    for pause in (0.3, 0.6, 1.2, 2.4, 4.8, 9.6, 10, 10):
        tried(settling, attempt)
        clock.now += pause - 0.01
        tried(settling, attempt)
        assert database.asked_now() == []
        clock.now += 0.02
        tried(settling, attempt)
        assert (database.asked_now(), database.patient) == ([attempt.pk], True)
    database.refused = set()
    tried(settling, attempt)
    clock.now += 10
    tried(settling, attempt)
    assert hosts(run) == [("a.test", 1)]
    assert network_of(attempt).settled_at is not None
    settling.go_on([])
    journal.add(decision(attempt.pk, allowed=False))
    tried(settling, attempt)
    assert not database.patient, "who has not asked for a while is tried at once"


@pytest.mark.django_db(transaction=True)
def test_a_proxy_that_stops_settles_what_it_has_begun_and_begins_nothing_more(
    journal: Journal, settling: Settling, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = [with_policy(journal.id)[0] for _ in range(THREADS + 2)]
    asked, goes_on, real = [], threading.Event(), EgressDecisions.store

    def store_(records: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
        asked.append(decided.attempt_id)
        goes_on.wait(LONG_WAIT)
        return real(records, decided, patient=patient)

    monkeypatch.setattr(EgressDecisions, "store", store_)
    for attempt in attempts:
        journal.add(decision(attempt.pk))
    settling.go_on([attempt.pk for attempt in attempts])
    eventually(lambda: len(asked) == THREADS, what="all threads are busy")
    stopping = threading.Thread(target=settling.stop)
    stopping.start()
    waiting = [each.done for each in settling._tries.values()][THREADS:]
    eventually(lambda: all(each.cancelled() for each in waiting), what="the others are left")
    assert stopping.is_alive()
    goes_on.set()
    stopping.join(LONG_WAIT)
    assert len(asked) == THREADS


# ---------------------------------------------------------------- several threads


@pytest.mark.parametrize("what", ["another decision", "the end", "a loss"])
def test_threads_that_come_at_once_for_a_new_workspace_all_have_an_effect(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    attempt, run = with_policy()
    met = threading.Barrier(2)

    class Meeting(unstored.Unstored):
        """Made by two threads at once, if two make one."""

        def __init__(self, *given: object) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                met.wait(0.3)
            super().__init__(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(journals, "Unstored", Meeting)
    others: dict[str, Callable[[], None]] = {
        "another decision": partial(journal.add, decision(attempt.pk)),
        "the end": partial(journal.close, attempt.pk),
        "a loss": partial(journal.follow, "gone", attempt.pk),
    }
    with ThreadPoolExecutor(2) as pool:
        refusal = decision(attempt.pk, allowed=False)
        for made in [pool.submit(journal.add, refusal), pool.submit(others[what])]:
            made.result()
    if what == "the end":
        with pytest.raises(RecordEnded):
            journal.add(decision(attempt.pk))
    journal.flush()
    assert len(recorded(run)) == (2 if what == "another decision" else 1)
    assert head_of(run).loss_count == (1 if what == "a loss" else 0)


@pytest.mark.django_db(transaction=True)
def test_a_decision_that_is_being_written_when_its_pass_ends_is_in_this_pass(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk))
    writing, ended, write = threading.Event(), threading.Event(), os.write

    def slowly(descriptor: int, data: bytes) -> int:
        writing.set()
        ended.wait(0.3)
        return write(descriptor, data)

    monkeypatch.setattr("os.write", slowly)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(journal.add, decision(attempt.pk, "b.test"))
        assert writing.wait(LONG_WAIT)
        journal._kept[attempt.pk].store(journal.id, passes=2, patient=True)
        ended.set()
        made.result()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]


@pytest.mark.django_db(transaction=True)
def test_a_pass_is_stored_by_one_thread_at_a_time(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    met, asked, real = threading.Barrier(2), [], EgressDecisions.store

    def store_(records: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
        asked.append(decided.number)
        with contextlib.suppress(threading.BrokenBarrierError):
            met.wait(0.3)
        return real(records, decided, patient=patient)

    def settled() -> None:
        try:
            assert journal.settle(attempt.pk)
        finally:
            connections.close_all()

    monkeypatch.setattr(EgressDecisions, "store", store_)
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(settled) for _ in range(2)]:
            each.result()
    assert asked == [1]
    assert hosts(run) == [("a.test", 1)]


# ---------------------------------------------------------------- closed and ended


def test_of_a_closed_workspace_nothing_begins_and_what_is_open_tells_how_it_ends(
    journal: Journal,
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    journal.close(attempt.pk)
    with pytest.raises(RecordEnded):
        journal.add(decision(attempt.pk))
    journal.add(decision(attempt.pk, connections=0, sent=7))
    journal.add(decision(attempt.pk, "b.test", allowed=False))
    journal.flush()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]
    assert recorded(run)[0]["bytesSent"] == 7


def test_behind_the_end_of_a_record_what_ends_late_is_neither_an_error_nor_kept(
    journal: Journal,
) -> None:
    attempt, run = with_policy(journal.id)
    egress_endings.settle(run)
    journal.close(attempt.pk)
    assert journal.settle(attempt.pk)
    journal.flush()
    journal.add(decision(attempt.pk, connections=0, sent=7))
    journal.follow("gone", attempt.pk)
    assert journal._kept == {}
    with pytest.raises(RecordEnded):
        journal.add(decision(attempt.pk))


def test_a_workspace_that_is_closed_is_remembered_until_it_is_settled(journal: Journal) -> None:
    attempt, _ = with_policy(journal.id)
    journal.close(attempt.pk)
    journal.flush()
    with pytest.raises(RecordEnded):
        journal.add(decision(attempt.pk))
    assert list(journal._kept) == [attempt.pk]


def test_a_workspace_whose_decisions_are_stored_is_forgotten_once_its_room_is_full(
    journal: Journal, clock: Clock
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    journal.flush()
    journal.flush()
    assert list(journal._kept) == [attempt.pk], "it would be given more room than it has"
    clock.now += 3600 / sums.PER_HOUR
    journal.flush()
    assert journal._kept == {}
    journal.add(decision(attempt.pk, "b.test"))
    journal.flush()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]


def test_a_network_that_this_proxy_or_nobody_served_before_lacks_nothing(
    journal: Journal,
) -> None:
    attempt, run = with_policy()
    journal.follow("", attempt.pk)
    journal.follow(journal.id, attempt.pk)
    journal.flush()
    assert head_of(run).loss_count == 0
    journal.add(decision(attempt.pk))
    journal.flush()
    journal.follow("gone", attempt.pk)
    journal.flush()
    assert RunLoss.objects.get(run_number=run.number).reason == DAMAGED


# ---------------------------------------------------------------- which networks


def test_a_proxy_is_asked_for_its_own_networks_that_end_and_are_not_settled(
    journal: Journal,
) -> None:
    mine, _ = with_policy(journal.id)
    with_policy("another")
    goes_on, _ = with_policy(journal.id)
    for network in EgressNetwork.objects.exclude(attempt=goes_on):
        EgressNetwork.objects.end(network.attempt_id)
    assert serving.ending(journal.id) == [(mine.pk, network_of(mine).pk)]
    serving.settled(mine.pk, "another")
    assert serving.ending(journal.id) == [(mine.pk, network_of(mine).pk)]
    serving.settled(goes_on.pk, journal.id)
    assert network_of(goes_on).settled_at is None, "it goes on"
    serving.settled(mine.pk, journal.id)
    assert serving.ending(journal.id) == []


def test_a_proxy_that_takes_a_network_has_not_settled_it(journal: Journal) -> None:
    attempt, _ = with_policy("another")
    other, _ = with_policy("another")
    EgressNetwork.objects.update(settled_at=network_of(attempt).created_at)
    assert serving.take(network_of(attempt).pk, attempt.pk, journal.id)
    assert network_of(other).served_by == "another"
    network = network_of(attempt)
    assert (network.served_by, network.settled_at) == (journal.id, None)


def test_of_a_dead_proxy_its_networks_are_taken_over_but_for_what_waits(journal: Journal) -> None:
    dead, waits, other = (with_policy(by)[0] for by in ("dead", "dead", "other"))
    serving.take_over("dead", journal.id, but={waits.pk})
    served = [network_of(each).served_by for each in (dead, waits, other)]
    assert served == [journal.id, "dead", "other"]


def test_a_network_of_what_was_erased_or_has_ended_is_served_by_nobody(journal: Journal) -> None:
    attempt, run = with_policy()
    other, _ = with_policy()
    assert EgressDecisions().is_open(attempt.pk)
    store.close_early(run.number, reason="container-gone", detail="removed")
    assert not EgressDecisions().is_open(attempt.pk)
    assert EgressDecisions().is_open(other.pk)
    assert not EgressDecisions().is_open(Attempt().pk)
    bare, bare_run = with_policy()
    RunHead.objects.filter(pk=bare_run.number).delete()
    assert not EgressDecisions().is_open(bare.pk)
    assert not EgressDecisions().store(Pass(bare.pk, journal.id, 1, []), patient=True)


# ---------------------------------------------------------------- what is stored


def stored(attempt: Attempt, number: int, *lines: Line, missing: bool = False) -> bool:
    decided = Pass(attempt.pk, "a-journal", number, lines, missing)
    return EgressDecisions().store(decided, patient=True)


def test_a_pass_is_stored_once_and_none_behind_a_later_one() -> None:
    attempt, run = with_policy()
    line = line_of(decision(attempt.pk))
    assert stored(attempt, 2, line)
    assert stored(attempt, 2, line)
    assert stored(attempt, 1, line)
    assert len(recorded(run)) == 1
    assert stored(attempt, 3, line)
    assert EgressDecisions().store(Pass(attempt.pk, "another", 1, [line]), patient=True)
    assert len(recorded(run)) == 3
    store.close_early(run.number, reason="container-gone", detail="removed")
    assert stored(attempt, 3, line), "it is stored already"
    assert not stored(attempt, 4, line)
    other, other_run = with_policy()
    assert stored(other, 1, line_of(decision(other.pk)))
    assert len(recorded(other_run)) == 1


def test_decisions_are_in_the_record_of_the_boot_run_and_in_no_other_of_the_attempt() -> None:
    attempt, run = with_policy()
    other = make_executable(attempt=attempt, id=UUID(int=1))
    assert stored(attempt, 1, line_of(decision(attempt.pk)))
    assert (len(recorded(run)), len(recorded(other))) == (1, 0)


def test_events_of_decisions_say_when_and_how_they_were_observed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_750_000_000_123_456_789)
    attempt, run = with_policy()
    RunHead.objects.filter(pk=run.number).update(coverage={})  # as an earlier release began it
    assert stored(attempt, 1, line_of(decision(attempt.pk)))
    events = list(RunEvent.objects.filter(run_number=run.number).order_by("sequence"))
    for event in events:
        assert event.wall_us == 1_750_000_000_123_456
        assert (event.method, event.confidence) == (Method.PROXY, Confidence.OBSERVED)
        assert event.process_number in (None, 0)
        assert (event.stream, event.stream_offset, event.length) == (0, 0, 0)
    begun, upgraded, decided = events
    kinds = [event.kind for event in events]
    assert kinds == [Kind.COVERAGE_CHANGED, Kind.COVERAGE_CHANGED, Kind.EGRESS_DECIDED]
    told = {"source": "egress", "state": "on", "method": "proxy"}
    assert json.loads(bytes(begun.meta)) == told
    assert json.loads(bytes(upgraded.meta)) == {**told, "state": "limited", "reason": UPGRADED}
    assert json.loads(bytes(decided.meta)) == recorded(run)[0]


def test_what_is_only_counted_is_a_loss_at_the_place_of_its_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sums, "MAX_DIFFERENT", 1)
    attempt, run = with_policy()
    total = sums.Sums()
    for place in range(5):
        total.add(line_of(decision(attempt.pk, f"h{place}.test", allowed=place < 3)))
    before = head_of(run).last_sequence
    assert stored(attempt, 1, *total, missing=True)
    told = [(each["decision"], each.get("host"), each["connections"]) for each in recorded(run)]
    named = [("allowed", "h0.test", 1), ("refused", "h3.test", 1)]
    assert told == [*named, ("allowed", None, 2), ("refused", None, 1)]
    losses = RunLoss.objects.filter(run_number=run.number).order_by("position")
    assert list(losses.values_list("kind", "from_sequence", "to_sequence", "count", "reason")) == [
        ("dropped_event", before + 3, before + 3, 2, NOT_NAMED),
        ("dropped_event", before + 4, before + 4, 1, NOT_NAMED),
        ("dropped_event", before + 1, None, None, DAMAGED),
    ]
    assert list(losses.values_list("detected_via", flat=True)) == ["marker", "marker", "gap"]


def test_a_finding_is_told_as_one(journal: Journal) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk, allowed=False, finding=True))
    journal.flush()
    assert recorded(run)[0]["decision"] == "finding"


def test_equal_decisions_are_one_and_what_was_told_of_the_first_is_not_changed() -> None:
    one = line_of(decision(Attempt().pk, sent=3))
    total = sums.Sums()
    total.add(one)
    total.add(one)
    (both,) = total
    assert (both.total.connections, both.total.sent, len(total)) == (2, 6, 1)
    assert one.total.connections == 1


def test_a_line_of_the_journal_says_all_of_a_decision() -> None:
    told = decision(
        Attempt().pk,
        allowed=False,
        finding=True,
        another_rule=True,
        method="PUT",
        credentials=("7f2c",),
        received=4,
    )
    line = line_of(told)
    assert Line.from_json(told.attempt_id, line.to_json()) == line
    for allowed, finding in ((True, False), (False, False), (False, True)):
        counted = Line(None, allowed, line.total, 5, finding)
        assert Line.from_json(told.attempt_id, counted.to_json()) == counted


@pytest.mark.parametrize("finding", [False, True])
def test_a_line_of_an_earlier_release_says_in_its_decision_whether_it_is_a_finding(
    finding: bool,
) -> None:
    told = decision(Attempt().pk, allowed=False, finding=finding)
    line = line_of(told)
    earlier = {name: value for name, value in line.to_json().items() if name != "finding"}
    assert Line.from_json(told.attempt_id, earlier) == line


def test_a_record_of_a_workspace_without_a_policy_says_nothing_of_decisions() -> None:
    attempt, run = with_policy()
    told = head_of(run).last_sequence
    attempt.spec = {"harness": {"id": "shell"}}
    egress_decisions.begin(Run(attempt=attempt, number=run.number))
    assert head_of(run).last_sequence == told


def test_a_run_of_no_attempt_waits_for_no_proxy() -> None:
    run = Run(mode=Run.Mode.BOOT)
    egress_endings.settle(run)
    egress_endings.close(run, RunHead())
    assert egress_endings.is_settled(run)
