"""The slots of a run worker: each mode of run has some of its own."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connections
from django.db.models.functions import Now

from controlplane.work.worker import WorkerTimes
from runs.models import Run
from runs.recording.run_worker import RunWorker
from runs.recording.slots import Slots
from runs.run_messages import RUN_REQUESTED
from tests.runs.executable import boot_run, make_executable
from tests.runs.recording.scripted_agent import ScriptedAgent, Spool
from tests.runs.recording.whole_runs import LIMITS, whole
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from workspaces.models import RuntimeInstance

QUICK = WorkerTimes(
    lease=timedelta(minutes=1),
    heartbeat=timedelta(milliseconds=500),
    stale=timedelta(minutes=1),
    sweep=timedelta(milliseconds=200),
    overdue=timedelta(hours=1),
    keep=timedelta(hours=1),
)


def test_every_kind_of_run_has_slots_of_its_own() -> None:
    slots = Slots({Run.Mode.ONE_SHOT: 1, Run.Mode.INTERACTIVE: 1, Run.Mode.BOOT: 1})
    session, boot, command = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()

    assert slots.acquire(session, Run.Mode.INTERACTIVE)
    assert not slots.acquire(uuid.uuid4(), Run.Mode.INTERACTIVE)
    assert slots.acquire(boot, Run.Mode.BOOT)
    assert slots.acquire(command, Run.Mode.ONE_SHOT)
    assert not slots.acquire(uuid.uuid4(), Run.Mode.ONE_SHOT)

    assert slots.all() == {session, boot, command}
    assert slots.of(Run.Mode.BOOT) == ({boot}, 0)
    assert slots.usage()["one-shot"] == {"capacity": 1, "in_use": 1}
    slots.release(session)
    assert slots.of(Run.Mode.INTERACTIVE) == (set(), 1)


def test_a_run_has_one_slot() -> None:
    slots = Slots({Run.Mode.ONE_SHOT: 2})
    run_id = uuid.uuid4()
    assert slots.acquire(run_id, Run.Mode.ONE_SHOT)

    assert not slots.acquire(run_id, Run.Mode.ONE_SHOT)

    assert slots.of(Run.Mode.ONE_SHOT) == ({run_id}, 1)


def make_worker(agent: ScriptedAgent, **values: Any) -> RunWorker:
    """Return a worker for this process whose engine is ``agent``."""
    return RunWorker(
        adapter=agent,
        limits=LIMITS,
        broker_url=settings.RABBITMQ_URL,
        broker_timeout=LONG_WAIT,
        **{"times": QUICK, "workspaces": 8, **values},
    )


def held(runs: Collection[Run]) -> int:
    """Return how many of some runs a worker is at."""
    ids = [run.pk for run in runs]
    return Run.objects.filter(pk__in=ids, lease_expires_at__gt=Now()).count()


@pytest.mark.docker
@pytest.mark.usefixtures("run_queue")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("with_messages", [True, False])
def test_sessions_that_have_all_their_slots_do_not_keep_a_command_waiting(
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
            eventually(lambda: held(sessions) == 2, what="the sessions have all their slots")
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
def test_a_session_that_waits_for_a_slot_is_recorded_when_one_is_free() -> None:
    sessions = [
        make_executable(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING, started_at=Now())
        for _ in range(3)
    ]
    agent = ScriptedAgent(spools={session.pk: whole(session) for session in sessions})

    make_worker(agent, capacity=1, sessions=1, max_runs=3).run()

    ended = Run.objects.filter(mode=Run.Mode.INTERACTIVE, status=Run.Status.COMPLETED)
    assert ended.count() == 3


@pytest.mark.docker
@pytest.mark.usefixtures("run_queue")
@pytest.mark.django_db(transaction=True)
def test_live_workspaces_that_fill_a_worker_do_not_keep_a_command_waiting() -> None:
    """Each workspace's record is open for as long as it lives."""
    boots = [boot_run(RuntimeInstance.Status.RUNNING) for _ in range(4)]
    agent = ScriptedAgent()
    for boot in boots:
        agent.spools[boot.pk] = Spool(str(uuid.uuid4()), [], sealed=False)
    command = make_executable(queued_at=Now() - timedelta(hours=2))
    agent.to_execute[command.pk] = whole(command)

    make_worker(agent, capacity=1, sessions=1, workspaces=2, max_runs=1).run()

    command.refresh_from_db()
    assert command.status == Run.Status.COMPLETED
    assert Run.objects.filter(mode=Run.Mode.BOOT, claim_count__gt=0).count() == 2


@pytest.mark.docker
@pytest.mark.usefixtures("run_queue")
@pytest.mark.django_db(transaction=True)
def test_a_command_that_was_refused_is_claimed_as_soon_as_a_slot_is_free() -> None:
    """No sweeper has to find it: that one comes once an hour here, and is late for a new run."""
    commands = [make_executable() for _ in range(3)]
    agent = ScriptedAgent(to_execute={command.pk: whole(command) for command in commands})
    for command in commands:
        RUN_REQUESTED.publish(command.pk)

    rarely = replace(QUICK, sweep=timedelta(hours=1))
    make_worker(agent, times=rarely, capacity=1, sessions=1, max_runs=3).run()

    assert Run.objects.filter(mode=Run.Mode.ONE_SHOT, status="completed").count() == 3


def test_a_refused_run_is_remembered_until_a_slot_is_free() -> None:
    slots = Slots({Run.Mode.ONE_SHOT: 1})
    first, second, third = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    assert slots.acquire(first, Run.Mode.ONE_SHOT)
    assert not slots.acquire(second, Run.Mode.ONE_SHOT)
    assert not slots.acquire(third, Run.Mode.ONE_SHOT)

    assert slots.next_refused(Run.Mode.ONE_SHOT) is None
    slots.release(first)
    assert slots.next_refused(Run.Mode.ONE_SHOT) == second
    assert slots.next_refused(Run.Mode.ONE_SHOT) == third
    assert slots.next_refused(Run.Mode.ONE_SHOT) is None
