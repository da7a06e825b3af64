"""Announcements: heard once they are committed, and never needed."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection, connections, transaction

from controlplane.work.notifications import announce, listen
from controlplane.work.stopping import StopEvent
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)

WAIT_SECONDS = LONG_WAIT


class Ear:
    """Listens on a thread of its own, and counts."""

    def __init__(self) -> None:
        self.channel = f"test_{uuid.uuid4().hex}"
        self.stopped = StopEvent()
        self.heard = threading.Semaphore(0)
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._listen)

    def _listen(self) -> None:
        try:
            listen(self.channel, self.heard.release, self.stopped)
        except OperationalError as error:
            self.error = error
        finally:
            connections.close_all()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Have it listen during the block."""
        self._thread.start()
        try:
            assert self.heard.acquire(timeout=WAIT_SECONDS), "the first look"
            yield
        finally:
            self.stopped.set()
            self._thread.join(WAIT_SECONDS)
            assert not self._thread.is_alive()


def test_an_announcement_is_heard_when_it_is_committed_and_not_before() -> None:
    ear = Ear()
    with ear.listening():
        with transaction.atomic():
            announce(ear.channel)
            assert not ear.heard.acquire(timeout=0.5)
        assert ear.heard.acquire(timeout=WAIT_SECONDS)


def test_what_is_rolled_back_or_announced_elsewhere_is_not_heard() -> None:
    ear = Ear()
    with ear.listening():
        with transaction.atomic():
            announce(ear.channel)
            transaction.set_rollback(True)
        announce(f"{ear.channel}_not")
        assert not ear.heard.acquire(timeout=0.5)
        announce(ear.channel)
        assert ear.heard.acquire(timeout=WAIT_SECONDS)


def test_a_listener_whose_connection_is_ended_says_so_instead_of_waiting_for_ever() -> None:
    ear = Ear()
    with ear.listening(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND query LIKE %s",
            [f'LISTEN "{ear.channel}"%'],
        )
        ear._thread.join(WAIT_SECONDS)
    assert ear.error is not None
