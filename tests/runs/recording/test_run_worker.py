"""A real run worker, its queue and its database; the workspaces of these runs are gone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.db.models.functions import Now

from controlplane.work import amqp
from controlplane.work.models import Heartbeat
from runs.models import Run
from runs.recording.run_worker import ANNOUNCED_FOR
from runs.run_messages import RUN_REQUESTED
from runs.services import begin_session
from tests.runs.executable import claim, make_executable, make_run_worker
from tests.stack.run_worker_process import RunWorkerProcess
from tests.stack.worker_process import eventually, messages_in
from tests.support.waiting import LONG_WAIT

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.usefixtures("run_queue"),
]

Start = Callable[..., RunWorkerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start workers that end with the test."""
    started: list[RunWorkerProcess] = []

    def begin(**values: object) -> RunWorkerProcess:
        log = tmp_path / f"worker-{len(started)}.log"
        started.append(RunWorkerProcess(log, **values))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for worker in started:
        worker.stop()


def ended(run: Run) -> bool:
    """Whether the run is final."""
    return Run.objects.get(pk=run.pk).status in Run.TERMINAL


def consuming(worker: RunWorkerProcess) -> None:
    """Wait until the worker takes messages."""
    eventually(lambda: "consuming" in worker.told, what="it consumes")


def test_a_message_makes_a_worker_see_to_the_run(start: Start) -> None:
    worker = start(max_runs=1, RUN_QUEUED_OVERDUE_MS="3600000")
    run = make_executable()
    RUN_REQUESTED.publish(run.pk)

    eventually(lambda: ended(run), what="the run has ended")

    run.refresh_from_db()
    assert run.error_code == "workspace-gone"
    assert run.claim_count == 1
    assert worker.wait() == 0
    assert messages_in(RUN_REQUESTED.topology().queue) == []


def test_a_run_without_a_message_is_found(start: Start) -> None:
    run = make_executable()
    start()

    eventually(lambda: ended(run), what="the run has ended")


def test_a_run_of_a_dead_worker_is_taken_over(start: Start) -> None:
    run = claim(make_executable(), "worker-dead")
    make_run_worker("worker-dead", seen=timedelta(minutes=1))
    start()

    eventually(lambda: ended(run), what="the run has ended")

    run.refresh_from_db()
    assert run.claim_count == 2


def test_a_session_that_its_gateway_announced_and_left_is_ended(start: Start) -> None:
    left = make_executable(mode=Run.Mode.INTERACTIVE, queued_at=Now() - ANNOUNCED_FOR)
    young = make_executable(mode=Run.Mode.INTERACTIVE)
    start()

    eventually(lambda: ended(left), what="the session has ended")

    left.refresh_from_db()
    assert left.error_code == "session-not-begun"
    assert not ended(young)


def test_a_session_that_begins_is_seen_to_at_once(start: Start) -> None:
    worker = start(max_runs=1, WORKER_SWEEP_INTERVAL_MS="3600000")
    run = make_executable(mode=Run.Mode.INTERACTIVE)
    consuming(worker)

    begin_session(run)

    eventually(lambda: ended(run), what="the session has ended")
    run.refresh_from_db()
    assert run.error_code == "workspace-gone"


def test_a_message_that_is_none_goes_to_the_dead_letters(start: Start) -> None:
    amqp.publish(
        settings.RABBITMQ_URL,
        RUN_REQUESTED.topology(),
        body=b"{}",
        message_id="x",
        kind="x",
        timeout=LONG_WAIT,
    )
    start()

    eventually(
        lambda: (
            (None, b"{}") in messages_in(RUN_REQUESTED.topology().dead_letter_queue)
            or ("x", b"{}") in messages_in(RUN_REQUESTED.topology().dead_letter_queue)
        ),
        what="it is a dead letter",
    )


def test_the_message_of_an_ended_run_is_done_with(start: Start) -> None:
    run = make_executable(status=Run.Status.CANCELLED, finished_at=Now())
    RUN_REQUESTED.publish(run.pk)
    worker = start()

    eventually(lambda: "run_not_claimable" in worker.told, what="it has seen the message")
    worker.stop()

    assert messages_in(RUN_REQUESTED.topology().queue) == []


def test_a_worker_that_is_told_to_stop_takes_its_heartbeat_along(start: Start) -> None:
    worker = start()
    consuming(worker)
    eventually(Heartbeat.objects.exists, what="it has a heartbeat")

    worker.process.send_signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert not Heartbeat.objects.exists()


def test_a_worker_without_a_broker_sees_to_runs_all_the_same(start: Start) -> None:
    run = make_executable(queued_at=Now() - timedelta(minutes=1))
    start(RABBITMQ_URL="amqp://nobody:nothing@127.0.0.1:1/")

    eventually(lambda: ended(run), what="the run has ended")
