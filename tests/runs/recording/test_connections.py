"""Turns of recorders to be connected to the database."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, connections

from runs.models import Run
from runs.recording.thread_connections import Connections, Database, StoppedError
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

NEVER = threading.Event()


class Taker(threading.Thread):
    """Takes one turn, and has it until it is told to go on."""

    def __init__(self, turns: Connections, order: list[int], number: int) -> None:
        super().__init__(daemon=True)
        self.go_on = threading.Event()
        self._turns, self._order, self._number = turns, order, number
        self.start()

    def run(self) -> None:
        assert self._turns.take(NEVER)
        self._order.append(self._number)
        self.go_on.wait()
        self._turns.give_back()


def waiting(turns: Connections, count: int) -> None:
    eventually(lambda: len(turns._waiting) == count, what=f"{count} wait", every=0.01)


def had(order: list[int], count: int) -> None:
    eventually(lambda: len(order) == count, what=f"{count} had a turn", every=0.01)


def test_no_more_have_a_turn_than_there_are_and_they_come_in_order() -> None:
    turns, order = Connections(2), list[int]()
    takers = []
    for number in range(5):
        takers.append(Taker(turns, order, number))
        if number < 2:
            had(order, number + 1)
        else:
            waiting(turns, number - 1)
    assert order == [0, 1]
    assert turns.wanted

    for number, taker in enumerate(takers):
        taker.go_on.set()
        had(order, min(number + 3, 5))

    assert order == [0, 1, 2, 3, 4]
    assert not turns.wanted


def test_who_gives_up_takes_no_turn_away() -> None:
    turns, cancelled = Connections(1), threading.Event()
    assert turns.take(NEVER)
    cancelled.set()

    assert not turns.take(cancelled)

    assert not turns.wanted
    turns.give_back()
    assert turns.take(cancelled)


@pytest.mark.django_db(transaction=True)
def test_a_connection_is_kept_until_somebody_waits_for_one() -> None:
    turns, stopped = Connections(1), threading.Event()
    database = Database(turns, stopped)
    found: list[int] = []

    def other() -> None:
        try:
            found.append(Database(turns, stopped)(Run.objects.count))
        finally:
            connections.close_all()

    database(Run.objects.count)
    assert connection.connection is not None
    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    waiting(turns, 1)

    database(Run.objects.count)
    thread.join(LONG_WAIT)

    assert connection.connection is None
    assert found == [0]


@pytest.mark.django_db
def test_a_recorder_that_is_told_to_stop_while_it_waits_for_the_database_stops() -> None:
    turns, stopped = Connections(1), threading.Event()
    assert turns.take(NEVER)
    stopped.set()

    with pytest.raises(StoppedError):
        Database(turns, stopped)(Run.objects.count)


def session_of(shared: Connections) -> int:
    """Ask in a thread of its own, which borrows its connection; return PostgreSQL's process."""
    found: list[int] = []

    def ask() -> None:
        with shared.lent(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            found.append(cursor.fetchone()[0])

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.django_db(transaction=True)
def test_threads_that_come_and_go_use_one_connection_as_long_as_it_lives() -> None:
    shared = Connections(4, kept=1)
    first = session_of(shared)
    assert session_of(shared) == first
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [first])

    second = session_of(shared)

    assert second != first
    assert session_of(shared) == second
    shared.close()
    eventually(lambda: not alive(second), what="the connection is closed", every=0.01)


@pytest.mark.django_db(transaction=True)
def test_a_kept_connection_that_the_driver_has_closed_is_not_used() -> None:
    shared = Connections(4, kept=1)
    first = session_of(shared)
    [(kept, _)] = shared._kept
    kept.connection.close()

    assert session_of(shared) != first

    shared.close()


@pytest.mark.django_db(transaction=True)
def test_a_thread_that_has_a_connection_leaves_what_is_kept_to_others() -> None:
    shared = Connections(4, kept=1)
    kept = session_of(shared)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        mine = cursor.fetchone()[0]

    shared.adopt()

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        assert cursor.fetchone()[0] == mine
    assert session_of(shared) == kept
    shared.close()


def alive(session: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [session])
        return cursor.fetchone() is not None


@pytest.mark.django_db(transaction=True)
def test_nothing_is_kept_of_what_no_room_is_for() -> None:
    shared = Connections(4)
    first = session_of(shared)
    eventually(lambda: not alive(first), what="the connection is closed", every=0.01)
