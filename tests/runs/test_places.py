"""The places of a run worker: sessions have some of their own."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connections
from django.db.models.functions import Now

from controlplane.work.worker import WorkerTimes
from runs.models import Run
from runs.recording.run_worker import RunWorker
from runs.recording.slots import RUNS, SESSIONS, Slots
from runs.run_messages import RUN_REQUESTED
from tests.runs.executable import make_executable
from tests.runs.scripted_agent import ScriptedAgent, Spool
from tests.runs.test_recorder import LIMITS, whole
from tests.worker_process import eventually

QUICK = WorkerTimes(
    lease=timedelta(minutes=1),
    heartbeat=timedelta(milliseconds=500),
    stale=timedelta(minutes=1),
    sweep=timedelta(milliseconds=200),
    overdue=timedelta(hours=1),
    keep=timedelta(hours=1),
)


def test_every_kind_of_run_has_places_of_its_own() -> None:
    places = Slots({RUNS: 2, SESSIONS: 1})
    session, boot, command = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()

    assert places.acquire(session, Run.Mode.INTERACTIVE)
    assert not places.acquire(uuid.uuid4(), Run.Mode.INTERACTIVE)
    assert places.acquire(boot, Run.Mode.BOOT)
    assert places.acquire(command, Run.Mode.ONE_SHOT)
    assert not places.acquire(uuid.uuid4(), Run.Mode.ONE_SHOT)

    assert places.all() == {session, boot, command}
    assert places.of(RUNS) == ({boot, command}, 0)
    places.release(session)
    assert places.of(SESSIONS) == (set(), 1)


def test_a_run_has_one_place() -> None:
    places = Slots({RUNS: 2, SESSIONS: 2})
    run_id = uuid.uuid4()
    assert places.acquire(run_id, Run.Mode.ONE_SHOT)

    assert not places.acquire(run_id, Run.Mode.ONE_SHOT)

    assert places.of(RUNS) == ({run_id}, 1)


def make_worker(agent: ScriptedAgent, **values: Any) -> RunWorker:
    """Return a worker for this process whose engine is ``agent``."""
    return RunWorker(
        adapter=agent,
        limits=LIMITS,
        broker_url=settings.RABBITMQ_URL,
        broker_timeout=5.0,
        times=QUICK,
        **values,
    )


def held(runs: Collection[Run]) -> int:
    """Return how many of some runs a worker is at."""
    ids = [run.pk for run in runs]
    return Run.objects.filter(pk__in=ids, lease_expires_at__gt=Now()).count()


@pytest.mark.docker
@pytest.mark.usefixtures("run_queue")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("with_messages", [True, False])
def test_sessions_that_have_all_their_places_do_not_keep_a_command_waiting(
    with_messages: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = [
        make_executable(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING, started_at=Now())
        for _ in range(5)
    ]
    agent = ScriptedAgent()
    for session in sessions:
        # It goes on for as long as anybody looks.
        agent.spools[session.pk] = Spool(str(uuid.uuid4()), [], sealed=False)
    commands: list[Run] = []

    def ask_for_a_command() -> None:
        try:
            if with_messages:
                for session in sessions:
                    RUN_REQUESTED.publish(session.pk)
            eventually(lambda: held(sessions) == 2, what="the sessions have all their places")
            queued_at = Now() - timedelta(hours=0 if with_messages else 2)
            command = make_executable(queued_at=queued_at)
            agent.to_execute[command.pk] = whole(command)
            commands.append(command)
            if with_messages:
                RUN_REQUESTED.publish(command.pk)
        finally:
            connections.close_all()

    asking = threading.Thread(target=ask_for_a_command, daemon=True)
    asking.start()
    make_worker(agent, capacity=1, sessions=2, max_runs=1).run()
    asking.join()

    (command,) = commands
    command.refresh_from_db()
    assert command.status == Run.Status.COMPLETED
    begun = Run.objects.filter(mode=Run.Mode.INTERACTIVE, claim_count__gt=0)
    assert begun.count() == 2
    assert Run.objects.filter(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING).count() == 5


@pytest.mark.docker
@pytest.mark.usefixtures("run_queue")
@pytest.mark.django_db(transaction=True)
def test_a_session_that_waits_for_a_place_is_recorded_when_one_is_free() -> None:
    sessions = [
        make_executable(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING, started_at=Now())
        for _ in range(3)
    ]
    agent = ScriptedAgent(spools={session.pk: whole(session) for session in sessions})

    make_worker(agent, capacity=1, sessions=1, max_runs=3).run()

    ended = Run.objects.filter(mode=Run.Mode.INTERACTIVE, status=Run.Status.COMPLETED)
    assert ended.count() == 3
