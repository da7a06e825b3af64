"""The database connections of dead workers are closed, and those of live ones are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.db.models.functions import Now

from controlplane.database.connections import end_sessions_of_dead_workers
from controlplane.work.models import Heartbeat

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def session_of(worker_id: str) -> Iterator[psycopg.Connection]:
    """Open a connection that has the name of a worker."""
    parameters = connection.get_connection_params()
    keys = ("dbname", "user", "password", "host", "port")
    chosen = {key: parameters[key] for key in keys if key in parameters}
    with psycopg.connect(**chosen, autocommit=True, application_name=worker_id) as session:
        yield session


def beat(worker_id: str, kind: Heartbeat.Kind, *, seconds_ago: float) -> None:
    Heartbeat.objects.beat(worker_id, kind=kind, hostname="test", pid=1, capacity=1)
    Heartbeat.objects.filter(pk=worker_id).update(seen_at=Now() - timedelta(seconds=seconds_ago))


def ended(kind: Heartbeat.Kind, stale: float) -> int:
    return end_sessions_of_dead_workers(Heartbeat, kind=kind.value, stale=timedelta(seconds=stale))


def test_the_connections_of_a_worker_without_a_heartbeat_are_closed() -> None:
    beat("worker-dead", Heartbeat.Kind.BUILD, seconds_ago=60)
    beat("worker-alive", Heartbeat.Kind.BUILD, seconds_ago=1)
    with session_of("worker-alive") as alive, session_of("worker-dead") as dead:
        assert ended(Heartbeat.Kind.BUILD, 20) == 1
        with pytest.raises(psycopg.OperationalError):
            dead.execute("SELECT 1")
        alive.execute("SELECT 1")


def test_a_worker_is_judged_by_those_of_its_own_kind_which_beat_as_it_does() -> None:
    """Build workers may beat every five seconds, and run workers twice a second."""
    beat("worker-build", Heartbeat.Kind.BUILD, seconds_ago=4)
    with session_of("worker-build") as session:
        assert ended(Heartbeat.Kind.RUN, 2.5) == 0
        session.execute("SELECT 1")
