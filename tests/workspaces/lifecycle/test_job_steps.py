"""Each statement of a build job's steps: all that it writes, and each guard of it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import models
from django.db.models.functions import Now

from runs.boot_runs import start_job
from runs.models import Run
from tests.factories import claim, make_job
from tests.runs.record_factory import make_run
from workspaces.lifecycle.step_statements import (
    Publication,
    SamePlan,
    cancel,
    fail,
    find_same_plan,
    finish,
    publish,
)
from workspaces.models import (
    Attempt,
    BuildJob,
    Fence,
    LeaseLost,
    PublishedRepository,
    RuntimeInstance,
    Sandbox,
    WorkspaceEvent,
)
from workspaces.runtimes.base import LaunchedRuntime

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
DIGEST = "sha256:" + "1" * 64
PUBLICATION = Publication(
    plan_hash="plan",
    reused=True,
    reference="registry/r:latest",
    digest_reference=f"registry/r@{DIGEST}",
    digest=DIGEST,
)
LAUNCHED = LaunchedRuntime("docker", "c0ffee", "svc-c0ffee", "docker-exec://c0ffee", "an-engine")
TABLES: tuple[type[models.Model], ...] = (BuildJob, Attempt, Sandbox, Run, RuntimeInstance)


def start(fence: Fence) -> None:
    job = BuildJob.objects.select_related("attempt").get(pk=fence.row_id)
    start_job(job.attempt, fence)


def published(fence: Fence) -> None:
    publish(fence, PUBLICATION)


def finished(fence: Fence) -> None:
    finish(fence, LAUNCHED)


Step = Callable[[Fence], None]
STEPS = pytest.mark.parametrize("step", [start, published, finished])


def claimed(step: Step) -> BuildJob:
    """Return a job that is claimed, long ago, and whose next step is this one."""
    job = claim(make_job(engine_name="one"))
    steps: list[Step] = [start, published, finished]
    for earlier in steps[: steps.index(step)]:
        earlier(job.fence)
    for table in TABLES:
        table._default_manager.update(updated_at=Now() - HOUR)
    return BuildJob.objects.get(pk=job.pk)


def everything() -> list[list[dict[str, Any]]]:
    """Return all that the statements may write to."""
    return [list(table._default_manager.order_by("pk").values()) for table in TABLES]


def values(row: models.Model, *names: str) -> tuple[Any, ...]:
    row.refresh_from_db()
    return tuple(getattr(row, name) for name in names)


def told(job: BuildJob) -> list[tuple[str, str, dict[str, Any]]]:
    """What the last two events of a workspace say, in order."""
    found = WorkspaceEvent.objects.filter(attempt=job.attempt).order_by("pk")
    return list(found.values_list("type", "message", "data"))[-2:]


def just_now(*times: datetime | None) -> bool:
    """Whether all of these are the time of one statement, and later than an hour ago."""
    (only,) = set(times)
    return only is not None and only > datetime.now(only.tzinfo) - HOUR / 2


# ---------------------------------------------------------------- what is written


def test_a_start_is_written_to_attempt_run_and_sandbox_with_its_worker() -> None:
    job = claimed(start)
    start(job.fence)
    attempt, sandbox = job.attempt, job.attempt.sandbox
    run = Run.objects.get(pk=attempt.run_id)
    assert values(attempt, "status") == ("running",)
    assert values(run, "status") == ("running",)
    assert values(sandbox, "status") == ("running",)
    times = values(attempt, "started_at", "updated_at") + values(run, "started_at", "updated_at")
    assert just_now(*times, *values(sandbox, "updated_at"))
    assert told(job)[-1] == (
        "attempt.running",
        "A build worker took the attempt.",
        {"workerId": "worker-a", "attemptCount": 1},
    )


def test_a_publication_is_written_to_the_job_with_a_runtime_and_its_events() -> None:
    job = claimed(published)
    lease = job.lease_expires_at
    published(job.fence)
    names = ("plan_hash", "reused", "published_reference", "published_digest_reference")
    assert values(job, "status", *names, "published_digest", "lease_expires_at") == (
        "succeeded",
        "plan",
        True,
        PUBLICATION.reference,
        PUBLICATION.digest_reference,
        DIGEST,
        lease,
    )
    runtime = RuntimeInstance.objects.get(attempt=job.attempt)
    assert (runtime.run_id, runtime.status) == (job.attempt.run_id, "pending")
    assert runtime.engine_name == "one"
    assert just_now(*values(job, "finished_at", "updated_at"))
    assert just_now(runtime.created_at, runtime.updated_at)
    image = {
        "reference": PUBLICATION.reference,
        "digestReference": PUBLICATION.digest_reference,
        "digest": DIGEST,
        "reused": True,
    }
    assert told(job) == [
        ("image.published", "The image was published.", image),
        ("runtime.pending", "The workspace is being launched.", {}),
    ]


def test_the_end_is_written_to_everything_that_is_ready_now() -> None:
    job = claimed(finished)
    BuildJob.objects.filter(pk=job.pk).update(engine_name="two")
    finished(job.fence)
    attempt, sandbox = job.attempt, job.attempt.sandbox
    runtime = RuntimeInstance.objects.get(attempt=attempt)
    assert values(job, "status", "lease_expires_at") == ("succeeded", None)
    assert values(attempt, "status") == ("succeeded",)
    assert values(sandbox, "status") == ("ready",)
    names = ("adapter", "resource_id", "reference", "endpoint", "engine_id", "engine_name")
    assert values(runtime, "status", *names) == (
        "running",
        "docker",
        "c0ffee",
        "svc-c0ffee",
        "docker-exec://c0ffee",
        "an-engine",
        "two",
    )
    assert just_now(
        *values(job, "updated_at"),
        *values(attempt, "finished_at", "updated_at"),
        *values(runtime, "launched_at", "updated_at"),
        *values(sandbox, "updated_at"),
    )
    container = {"adapter": "docker", "resourceId": "c0ffee", "reference": "svc-c0ffee"}
    assert told(job) == [
        ("runtime.running", "The workspace runs.", container),
        ("attempt.succeeded", "The workspace is ready.", {}),
    ]


# ---------------------------------------------------------------- whose it is


@STEPS
@pytest.mark.parametrize("other", [{"worker_id": "worker-b"}, {"count": 2}])
def test_each_part_of_the_fence_alone_keeps_a_step_from_writing(
    step: Step, other: dict[str, Any]
) -> None:
    job = claimed(step)
    before = everything()
    with pytest.raises(LeaseLost):
        step(replace(job.fence, **other))
    assert everything() == before


@STEPS
def test_a_step_writes_nothing_of_another_job_of_the_same_worker(step: Step) -> None:
    job, other = claimed(step), claimed(step)
    kept = rows_of(other)
    step(job.fence)
    assert rows_of(other) == kept


def rows_of(job: BuildJob) -> list[Any]:
    """Return all rows of a job as they are now."""
    attempt = Attempt.objects.get(pk=job.attempt_id)
    events = WorkspaceEvent.objects.filter(workspace=attempt.workspace_id).count()
    return [
        list(BuildJob.objects.filter(pk=job.pk).values()),
        list(Attempt.objects.filter(pk=attempt.pk).values()),
        list(Sandbox.objects.filter(pk=attempt.sandbox_id).values()),
        list(Run.objects.filter(attempt=attempt).values()),
        list(RuntimeInstance.objects.filter(attempt=attempt).values()),
        events,
    ]


@STEPS
def test_a_step_of_a_cancelled_job_writes_nothing(step: Step) -> None:
    job = claimed(step)
    BuildJob.objects.filter(pk=job.pk).update(
        status="cancelled", finished_at=Now(), lease_expires_at=None
    )
    before = everything()
    with pytest.raises(LeaseLost):
        step(job.fence)
    assert everything() == before


@STEPS
def test_a_sandbox_shows_its_latest_attempt_and_no_earlier_one(step: Step) -> None:
    job = claimed(step)
    Sandbox.objects.filter(pk=job.attempt.sandbox_id).update(latest_attempt=None, status="failed")
    step(job.fence)
    assert values(job.attempt.sandbox, "status") == ("failed",)


# ---------------------------------------------------------------- what was there before


def test_a_publication_that_is_sent_again_is_written_once_and_only_by_who_holds_the_job() -> None:
    job = claimed(published)
    published(job.fence)
    before = everything()
    published(job.fence)
    assert everything() == before
    BuildJob.objects.filter(pk=job.pk).update(lease_expires_at=Now())
    claim(job, "worker-b")
    with pytest.raises(LeaseLost):
        published(job.fence)


def test_a_job_that_is_held_and_has_failed_has_published_nothing() -> None:
    job = claimed(published)
    BuildJob.objects.filter(pk=job.pk).update(
        status="failed", error_message="It failed.", finished_at=Now(), lease_expires_at=None
    )
    with pytest.raises(LeaseLost):
        published(job.fence)


@pytest.mark.parametrize("status", ["failed", "cancelled", "succeeded"])
def test_an_attempt_that_is_over_stays_as_it_is_and_the_job_is_released(status: str) -> None:
    job = claimed(finished)
    Attempt.objects.filter(pk=job.attempt_id).update(status=status, finished_at=Now() - HOUR)
    before = everything()[1:]
    finished(job.fence)
    assert everything()[1:] == before
    assert values(job, "lease_expires_at") == (None,)
    assert told(job)[-1][0] == "runtime.pending"


def test_an_attempt_whose_start_nobody_has_written_is_ready_as_well() -> None:
    job = claimed(finished)
    Attempt.objects.filter(pk=job.attempt_id).update(status="queued", started_at=None)
    finished(job.fence)
    assert values(job.attempt, "status") == ("succeeded",)


@pytest.mark.parametrize("status", ["running", "failed", "cancelled"])
def test_a_start_leaves_an_attempt_that_was_started_or_is_over(status: str) -> None:
    job = claimed(start)
    over = Now() - HOUR if status != "running" else None
    Attempt.objects.filter(pk=job.attempt_id).update(
        status=status, started_at=Now() - HOUR, finished_at=over
    )
    before = everything()[1:3]
    start(job.fence)
    assert everything()[1:3] == before
    assert told(job)[-1][0] == "attempt.queued"


def test_a_start_leaves_a_boot_run_that_has_ended_and_runs_of_other_kinds() -> None:
    job = claimed(start)
    other = make_run(status=Run.Status.QUEUED, workspace=job.attempt.workspace, attempt=job.attempt)
    boot = Run.objects.get(pk=job.attempt.run_id)
    Run.objects.filter(pk=boot.pk).update(status=Run.Status.CANCELLED, finished_at=Now())
    assert start_job(job.attempt, job.fence).run.pk == boot.pk
    assert values(boot, "status", "started_at") == (Run.Status.CANCELLED, None)
    assert values(other, "status", "started_at") == (Run.Status.QUEUED, None)


def test_an_attempt_without_a_boot_run_gets_one_with_its_start() -> None:
    job = claimed(start)
    make_run(status=Run.Status.QUEUED, workspace=job.attempt.workspace, attempt=job.attempt)
    Run.objects.filter(pk=job.attempt.run_id).delete()
    run = start_job(job.attempt, job.fence).run
    assert (run.pk, run.mode, run.status) == (job.attempt.run_id, Run.Mode.BOOT, "running")


# ---------------------------------------------------------------- an image of the same plan


def same_plan(fence: Fence, owner: str = "one") -> SamePlan | None:
    return find_same_plan(fence, PUBLICATION.plan_hash, owner_user_id=owner)


def test_the_repository_of_a_job_whose_plan_was_published_becomes_its_owners_once() -> None:
    job = claim(make_job(engine_name="one"))
    assert same_plan(job.fence) is None
    earlier = claimed(finished)
    assert same_plan(job.fence) == SamePlan(earlier.repository, DIGEST, "one")
    assert same_plan(job.fence, "two") == SamePlan(earlier.repository, DIGEST, "one")
    fail(earlier.fence, code="boot-failed", message="It did not boot.")
    assert same_plan(job.fence) is None


def test_whose_a_repository_is_follows_from_its_registry_and_its_name_together() -> None:
    job, earlier = claim(make_job(engine_name="one")), claimed(finished)
    PublishedRepository.objects.claim("another", job.repository, owner_user_id="two")
    PublishedRepository.objects.claim(job.registry_id, "tests/another", owner_user_id="three")
    assert same_plan(job.fence) == SamePlan(earlier.repository, DIGEST, "one")


@pytest.mark.parametrize(
    "other", [{"plan_hash": "another"}, {"registry_id": "another"}, {"image_removed_at": Now()}]
)
def test_only_an_image_of_this_plan_that_is_in_the_jobs_registry_is_found(
    other: dict[str, Any],
) -> None:
    job, earlier = claim(make_job(engine_name="one")), claimed(finished)
    BuildJob.objects.filter(pk=earlier.pk).update(**other)
    assert same_plan(job.fence) is None


def test_a_plan_without_a_hash_is_the_same_as_no_other() -> None:
    job, earlier = claim(make_job(engine_name="one")), claimed(finished)
    BuildJob.objects.filter(pk=earlier.pk).update(plan_hash="")
    assert find_same_plan(job.fence, "", owner_user_id="one") is None


def test_of_several_images_of_a_plan_the_latest_is_found() -> None:
    job = claim(make_job(engine_name="one"))
    latest = [claimed(finished) for _ in range(3)][-1]
    found = same_plan(job.fence)
    assert found is not None
    assert found.repository == latest.repository


def test_a_job_that_was_cancelled_finds_no_image() -> None:
    job, _ = claim(make_job(engine_name="one")), claimed(finished)
    BuildJob.objects.filter(pk=job.pk).update(
        status="cancelled", finished_at=Now(), lease_expires_at=None
    )
    with pytest.raises(LeaseLost):
        same_plan(job.fence)
    assert not PublishedRepository.objects.exists()


@pytest.mark.parametrize("other", [{"worker_id": "worker-b"}, {"count": 2}])
def test_only_who_holds_a_job_finds_an_image_of_its_plan(other: dict[str, Any]) -> None:
    job = claim(make_job(engine_name="one"))
    with pytest.raises(LeaseLost):
        same_plan(replace(job.fence, **other))


def test_a_failure_is_written_to_job_and_runtime_with_its_code_and_message() -> None:
    job = claimed(finished)
    fail(job.fence, code="boot-failed", message="It did not boot.")
    runtime = RuntimeInstance.objects.get(attempt=job.attempt)
    for row in (job, runtime):
        assert values(row, "status", "error_code", "error_message") == (
            "failed",
            "boot-failed",
            "It did not boot.",
        )


def test_a_failure_is_told_of_the_runtime_and_of_the_attempt_with_its_code() -> None:
    job = claimed(finished)
    fail(job.fence, code="boot-failed", message="It did not boot.")
    attempt, sandbox = job.attempt, job.attempt.sandbox
    assert values(attempt, "status", "error_code", "error_message") == (
        "failed",
        "boot-failed",
        "It did not boot.",
    )
    assert values(sandbox, "status") == ("failed",)
    assert told(job) == [
        ("runtime.failed", "It did not boot.", {"errorCode": "boot-failed"}),
        ("attempt.failed", "It did not boot.", {"errorCode": "boot-failed"}),
    ]
    other = claimed(finished)
    fail(other.fence, code="", message="It failed.")
    assert told(other)[-1] == ("attempt.failed", "It failed.", {})


@pytest.mark.parametrize("step", [start, published, finished])
def test_a_cancellation_is_told_of_what_there_is_with_its_reason(step: Step) -> None:
    job = claimed(step)
    assert cancel(job.pk, reason="Enough.") == ("succeeded" if step is finished else "running")
    assert values(job, "status", "error_message", "lease_expires_at") == (
        "cancelled",
        "Enough.",
        None,
    )
    assert values(job.attempt, "status", "error_code", "error_message") == (
        "cancelled",
        "",
        "Enough.",
    )
    assert values(job.attempt.sandbox, "status") == ("cancelled",)
    assert told(job)[-1] == ("attempt.cancelled", "Enough.", {})
    if step is finished:
        runtime = RuntimeInstance.objects.get(attempt=job.attempt)
        assert values(runtime, "status", "error_code") == ("stopped", "cancelled")
        assert told(job)[0] == ("runtime.stopped", "Enough.", {"errorCode": "cancelled"})
    assert cancel(job.pk, reason="Again.") is None
