"""Two callers at the same moment, and claims that nobody holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models.functions import Now

from controlplane.errors import BadGateway
from tests.factories import OWNER, claim, make_job, make_worker
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.lifecycle.queueing import requeue_job
from workspaces.lifecycle.start import retry_sandbox, start_sandbox
from workspaces.lifecycle.starting.start_request import NewSandbox
from workspaces.models import Attempt, BuildJob, Sandbox, SandboxRequest


def at_once(callers: int, call: Callable[[int], Any]) -> list[Any]:
    """Return what each of the callers got, an exception being something to get too."""
    barrier = threading.Barrier(callers)
    got: list[Any] = []

    def run(number: int) -> None:
        try:
            barrier.wait()
            got.append(call(number))
        except Exception as exc:
            got.append(exc)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def ended_job() -> BuildJob:
    """Return a job whose workspace has failed."""
    job = make_job()
    fail_unclaimed_job(job, code="queue-publish-failed", message="The queue was away.")
    return job


def start_request(job: BuildJob, key: str | None = None) -> NewSandbox:
    """Return the request to start the job's workspace again."""
    return NewSandbox(
        owner_user_id=OWNER,
        registry_id="default",
        repository="tests/again",
        tag="latest",
        spec={"harness": {"id": "shell"}},
        workspace_id=job.attempt.workspace_id,
        relation=Sandbox.Relation.REBUILD,
        idempotency_key=key,
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("build_queue")
def test_simultaneous_starts_with_one_key_all_get_the_first_answer() -> None:
    job = ended_job()

    got = at_once(6, lambda _: start_sandbox(start_request(job, "once")))

    assert len({one.answer["sandboxId"] for one in got}) == 1
    assert sum(one.replayed for one in got) == 5
    assert Sandbox.objects.filter(workspace=job.attempt.workspace).count() == 2


@pytest.mark.django_db
def test_a_worker_gives_back_what_the_table_calls_its_own_and_it_does_not_hold() -> None:
    held, stray, foreign, young = make_job(), make_job(), make_job(), make_job()
    claim(held)
    claim(stray)
    claim(foreign, "worker-b")
    BuildJob.objects.update(claimed_at=Now() - timedelta(hours=1))
    claim(young)

    released = BuildJob.objects.release_strays(
        "worker-a", {held.pk}, older_than=timedelta(minutes=30)
    )

    assert released == 1

    assert list(BuildJob.objects.expired().values_list("pk", flat=True)) == [stray.pk]


@pytest.mark.django_db
def test_a_job_that_was_given_back_is_claimable_and_has_lost_no_try() -> None:
    job = make_job(max_attempts=1)
    first = claim(job)

    assert BuildJob.objects.give_back(first.fence)

    again = claim(job, "worker-b")
    assert again.attempt_count == 2
    assert again.attempt_count <= BuildJob.objects.get(pk=job.pk).max_attempts


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("build_queue")
def test_requeueing_ends_the_lease_of_a_dead_worker_and_of_no_living_one() -> None:
    dead, alive = make_job(), make_job()
    make_worker("alive")
    make_worker("dead", seen=timedelta(minutes=1))
    claim(dead, "dead")
    claim(alive, "alive")

    assert requeue_job(dead)
    assert requeue_job(alive)

    assert list(BuildJob.objects.expired().values_list("pk", flat=True)) == [dead.pk]


@pytest.mark.django_db
@pytest.mark.usefixtures("unreachable_broker")
def test_a_retry_that_fails_does_not_change_the_first_answer() -> None:
    job = ended_job()
    sandbox = job.attempt.sandbox
    remembered = SandboxRequest.objects.create(
        owner_user_id=OWNER, key="first", request_hash="0" * 64, sandbox=sandbox, answer={}
    )

    with pytest.raises(BadGateway):
        retry_sandbox(sandbox, requested_by="operator")

    remembered.refresh_from_db()
    assert not remembered.publish_failed
    assert Attempt.objects.filter(sandbox=sandbox, status="failed").count() == 2
