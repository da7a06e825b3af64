"""Runs whose container, engine or spool is gone: their record ends, and says what it lacks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models.functions import Now

from runs.models import Run, RunHead, RunLoss
from runs.record import store
from tests.runs.executable import boot_run, claim, make_executable
from tests.runs.recording.scripted_agent import ScriptedAgent
from tests.runs.recording.whole_runs import (
    GONE,
    NOT_RUNNING,
    assert_whole,
    early_close,
    output,
    record,
    whole,
)
from workspaces import services as workspaces
from workspaces.models import ENGINE_GONE, RuntimeInstance
from workspaces.runtimes.base import LaunchError

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("error", [GONE, NOT_RUNNING])
def test_a_run_whose_container_is_gone_before_it_began_fails(error: LaunchError) -> None:
    run = record(make_executable(), ScriptedAgent(unreachable=[error] * 1000))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "workspace-gone")
    assert not RunLoss.objects.filter(run_number=run.number).exists()


@pytest.mark.parametrize("error", [GONE, NOT_RUNNING])
def test_a_run_whose_container_goes_away_ends_with_a_named_loss(error: LaunchError) -> None:
    run = make_executable()
    spool = whole(run)
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents[:3])

    run = record(run, ScriptedAgent(unreachable=[error] * 1000))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "workspace-ended")
    assert output(run) == b"first\n"
    assert early_close(run) == 4


def test_a_container_that_another_engine_should_have_is_not_gone() -> None:
    run = make_executable()
    RuntimeInstance.objects.update(engine_id="ours")
    agent = ScriptedAgent(
        to_execute={run.pk: whole(run)}, unreachable=[GONE, GONE], engine="another"
    )

    assert_whole(record(run, agent))


@pytest.mark.parametrize("mode", [Run.Mode.ONE_SHOT, Run.Mode.BOOT])
def test_a_record_whose_engine_is_gone_for_good_ends_with_a_named_loss(mode: Run.Mode) -> None:
    run = make_executable() if mode == Run.Mode.ONE_SHOT else boot_run("running")
    RuntimeInstance.objects.update(engine_id="gone")
    spool = whole(run)
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents[:3])
    assert run.attempt is not None
    with transaction.atomic():
        workspaces.end_runtimes(
            [run.attempt.run_id],
            status=RuntimeInstance.Status.FAILED,
            code=ENGINE_GONE,
            message="The engine is gone.",
        )

    run = record(run, ScriptedAgent(unreachable=[GONE] * 1000, engine="another"))

    code = "workspace-ended" if mode == Run.Mode.ONE_SHOT else ENGINE_GONE
    assert (run.status, run.error_code) == (Run.Status.FAILED, code)
    assert early_close(run) == 4


def test_the_exit_decides_although_the_end_of_the_record_is_lost() -> None:
    run = make_executable()
    spool = whole(run)
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents[:-1])

    run = record(run, ScriptedAgent(unreachable=[GONE] * 1000))

    assert (run.status, run.exit_code) == (Run.Status.COMPLETED, 0)
    assert early_close(run) == 8


def test_what_can_be_part_of_no_record_ends_the_record_with_what_came_before() -> None:
    run = make_executable()
    spool = whole(run)
    spool.contents[4] = b"no event"

    run = record(run, ScriptedAgent(to_execute={run.pk: spool}))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")
    assert early_close(run) == 5


def test_a_spool_that_is_not_there_any_more_ends_the_record_with_a_loss() -> None:
    run = make_executable()
    spool = whole(run)
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents[:4])

    run = record(run, ScriptedAgent())

    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")
    assert early_close(run) == 5


def test_a_run_that_began_is_not_begun_again_whatever_became_of_its_spool() -> None:
    run = make_executable()
    agent = ScriptedAgent(to_execute={run.pk: whole(run)}, forgets=True)

    run = record(run, agent)

    assert [call[0] for call in agent.calls] == ["exec"]
    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")
    assert early_close(run) == 1


def test_a_run_that_another_worker_began_is_not_begun_again_without_its_spool() -> None:
    run = make_executable()
    claim(run, lease=timedelta(seconds=-1))
    store.open_source(run.number, whole(run).spool_id)
    agent = ScriptedAgent(to_execute={run.pk: whole(run)})

    run = record(run, agent)

    assert [call[0] for call in agent.calls] == ["tail"]
    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")


@pytest.mark.parametrize("error", [GONE, NOT_RUNNING])
def test_a_run_that_began_and_whose_container_is_gone_at_once_lacks_its_record(
    error: LaunchError,
) -> None:
    run = make_executable()
    store.open_source(run.number, whole(run).spool_id)

    run = record(run, ScriptedAgent(unreachable=[error] * 1000))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "workspace-ended")
    assert early_close(run) == 1


def test_an_error_that_nobody_thought_of_does_not_keep_a_run_open_for_ever() -> None:
    run = make_executable()
    agent = ScriptedAgent(unreachable=[ZeroDivisionError()] * 1000)  # type: ignore[list-item]

    run = record(run, agent)

    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")


def test_a_boot_run_goes_on_for_as_long_as_its_container_may_come_back() -> None:
    run = boot_run(RuntimeInstance.Status.RUNNING)
    agent = ScriptedAgent(spools={run.pk: whole(run)}, unreachable=[NOT_RUNNING, GONE, NOT_RUNNING])

    assert_whole(record(run, agent))
    assert {call[0] for call in agent.calls} == {"tail"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (RuntimeInstance.Status.FAILED, Run.Status.FAILED),
        (RuntimeInstance.Status.STOPPED, Run.Status.COMPLETED),
    ],
)
def test_a_boot_run_ends_with_its_runtime(status: str, expected: str) -> None:
    run = record(boot_run(status), ScriptedAgent(unreachable=[GONE] * 1000))

    assert run.status == expected
    assert RunHead.objects.get(pk=run.number).sealed_at is not None


def test_a_boot_run_of_a_failed_build_ends_with_the_reason_of_its_attempt() -> None:
    run = boot_run(None)
    assert run.attempt is not None
    type(run.attempt).objects.filter(pk=run.attempt.pk).update(
        status="failed",
        error_code="build-timed-out",
        error_message="Too slow.",
        finished_at=Now() - timedelta(minutes=1),
    )

    run = record(run, ScriptedAgent())

    assert (run.status, run.error_code) == (Run.Status.FAILED, "build-timed-out")
    assert not RunLoss.objects.filter(run_number=run.number).exists()
