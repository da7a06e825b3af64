"""Which engine a job goes to, where there are several."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from tests.factories import LEASE, claim, make_job
from tests.support import attempt_steps
from tests.support.engines import GIB, STALE, make_engine, persistent, silence
from workspaces import services as workspaces
from workspaces.lifecycle.placement import (
    Room,
    Waiting,
    choose,
    place_waiting,
    several_engines,
)
from workspaces.models import Attempt, BuildJob, Engine, RuntimeInstance, WarmMember, WarmPlan
from workspaces.runtimes.base import LaunchedRuntime

pytestmark = pytest.mark.django_db

WORKSPACES = 1000
ENGINES = 10
MOST_QUERIES = 20


def place() -> int:
    return place_waiting(stale=STALE)


def engine_of(job: BuildJob) -> str:
    return BuildJob.objects.get(pk=job.pk).engine_name


def claimed_on(job: BuildJob, engine: str) -> BuildJob:
    """Have a worker of an engine be at a job that was placed there."""
    BuildJob.objects.filter(pk=job.pk).update(engine_name=engine)
    claimed = BuildJob.objects.claim(job.pk, worker_id="w", lease=LEASE, engine=engine)
    assert claimed is not None
    return claimed


def launched_on(job: BuildJob, engine: str) -> None:
    """Have the workspace of ``job`` run on an engine."""
    claimed_on(job, engine)
    BuildJob.objects.filter(pk=job.pk).update(
        status="succeeded", published_digest="sha256:0", finished_at=Now(), lease_expires_at=None
    )
    attempt_steps.start_attempt(job.attempt, worker_id="w", attempt_count=1)
    attempt_steps.await_runtime(job.attempt, published={}, engine_name=engine)
    launched = LaunchedRuntime("docker", "c", "c", "docker-exec://c", f"id-of-{engine}")
    assert attempt_steps.mark_ready(job.attempt, launched, engine_name=engine)


def stop(job: BuildJob) -> None:
    assert workspaces.stop_runtime(job.attempt, code="stopped", message="Stopped.")


def start_again(job: BuildJob) -> BuildJob:
    """Return the queued job of another attempt of the same sandbox."""
    sandbox = job.attempt.sandbox
    attempt = workspaces.create_attempt(
        sandbox=sandbox,
        relation=sandbox.Relation.RETRY,
        trigger_type=Attempt.TriggerType.API,
        requested_by="usr_test",
    )
    return BuildJob.objects.create(
        attempt=attempt,
        registry_id="default",
        repository=job.repository,
        tag=job.tag,
        max_attempts=3,
    )


def needing(memory_mb: int) -> dict[str, Any]:
    """Return a blueprint with a limit of memory."""
    return {"harness": {"id": "shell"}, "runtime": {"resources": {"memoryMb": memory_mb}}}


def room(name: str, free: int, *repositories: str) -> Room:
    return Room(name, free, frozenset(repositories))


def waiting(**values: Any) -> Waiting:
    given = {"engine_name": "", "repository": "r", "memory": GIB, "bound_to": ""}
    return Waiting(job_id=uuid.uuid4(), **{**given, **values})


def test_a_thousand_workspaces_are_placed_over_ten_engines_in_few_statements() -> None:
    for number in range(ENGINES):
        make_engine(f"engine-{number}", memory=200 * GIB)
    first = make_job()
    BuildJob.objects.bulk_create(
        BuildJob(
            attempt=first.attempt, registry_id="default", repository="r", tag="t", max_attempts=3
        )
        for _ in range(WORKSPACES - 1)
    )
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert place() == WORKSPACES
    assert len(queries) <= MOST_QUERIES, [query["sql"][:80] for query in queries]
    placed = Counter(BuildJob.objects.values_list("engine_name", flat=True))
    assert set(placed.values()) == {WORKSPACES // ENGINES}


def test_one_engine_leaves_nothing_to_choose() -> None:
    make_engine("local")
    assert not several_engines()
    make_engine("second")
    assert several_engines()
    Engine.objects.filter(pk="second").update(state="gone")
    assert not several_engines()


def test_a_job_goes_where_most_memory_is_not_promised() -> None:
    make_engine("small", memory=8 * GIB)
    make_engine("large", memory=9 * GIB)
    jobs = [make_job(spec=needing(4096)) for _ in range(4)]
    assert place() == len(jobs)
    assert [engine_of(job) for job in jobs] == ["large", "small", "large", "small"]


def test_what_runs_and_what_is_queued_there_counts_and_what_has_ended_does_not() -> None:
    make_engine("one", memory=16 * GIB)
    make_engine("two", memory=15 * GIB)
    large = needing(8192)
    running, ended = make_job(spec=large), make_job(spec=large)
    launched_on(running, "one")
    launched_on(ended, "two")
    stop(ended)
    job = make_job(spec=large)
    place()
    assert engine_of(job) == "two"


def test_an_engine_with_the_image_is_preferred_while_it_has_at_least_half_the_room() -> None:
    job = waiting()
    assert choose([job], [room("a", 10 * GIB), room("b", 5 * GIB, "r")]) == {job.job_id: "b"}
    assert choose([job], [room("a", 10 * GIB), room("b", 4 * GIB, "r")]) == {job.job_id: "a"}


def test_where_none_has_room_the_one_with_most_takes_it() -> None:
    job = waiting(memory=64 * GIB)
    assert choose([job], [room("a", -3 * GIB), room("b", GIB)]) == {job.job_id: "b"}


def test_nothing_is_placed_while_no_engine_takes_anything() -> None:
    make_engine("drained", state="draining")
    make_engine("lost", seen=2 * STALE)
    job = make_job()
    assert place() == 0
    assert engine_of(job) == ""


def test_a_queued_job_moves_off_an_engine_that_is_drained_or_lost() -> None:
    make_engine("old")
    make_engine("new", memory=GIB)
    job, other = make_job(), make_job()
    place()
    assert {engine_of(job), engine_of(other)} == {"old"}
    Engine.objects.filter(pk="old").update(state="draining")
    assert place() == 2
    assert engine_of(job) == "new"
    make_engine("third")
    silence("new")
    assert place() == 2
    assert engine_of(job) == "third"


def test_a_persistent_workspace_stays_where_its_volumes_are_whatever_that_engine_does() -> None:
    make_engine("full", memory=GIB)
    make_engine("empty", memory=100 * GIB)
    first = make_job(spec=persistent())
    launched_on(first, "full")
    stop(first)
    for change in ({"state": "active"}, {"state": "draining"}):
        Engine.objects.filter(pk="full").update(**change)
        again = start_again(first)
        place()
        assert engine_of(again) == "full"
    silence("full")
    again = start_again(first)
    place()
    assert engine_of(again) == "full"


def test_what_waits_for_an_engine_that_is_lost_keeps_nothing_else_from_being_placed() -> None:
    make_engine("lost")
    first = make_job(spec=persistent())
    launched_on(first, "lost")
    stop(first)
    stuck = start_again(first)
    assert place() == 1
    silence("lost")
    make_engine("well")
    job = make_job()
    assert place_waiting(stale=STALE, at_most=1) == 1
    assert (engine_of(stuck), engine_of(job)) == ("lost", "well")


def test_an_ephemeral_workspace_that_was_stopped_goes_anywhere() -> None:
    make_engine("full", memory=GIB)
    make_engine("empty", memory=100 * GIB)
    first = make_job()
    launched_on(first, "full")
    stop(first)
    again = start_again(first)
    place()
    assert engine_of(again) == "empty"


@pytest.mark.parametrize("code", ["adapter-unavailable", "attempts-exhausted"])
def test_where_a_container_may_be_left_the_next_one_goes_too(code: str) -> None:
    make_engine("cut-off", memory=GIB)
    make_engine("other", memory=100 * GIB)
    first = make_job()
    claimed_on(first, "cut-off")
    attempt_steps.await_runtime(first.attempt, published={}, engine_name="cut-off")
    workspaces.fail_runtime(first.attempt, code=code, message="Nobody knows.")
    again = start_again(first)
    place()
    assert engine_of(again) == "cut-off"
    RuntimeInstance.objects.update(error_code="step-failed")
    BuildJob.objects.filter(pk=again.pk).update(engine_name="")
    place()
    assert engine_of(again) == "other"


def test_a_job_at_work_moves_only_when_nobody_is_at_it_and_its_worker_writes_nothing_more() -> None:
    make_engine("one")
    make_engine("two", memory=GIB)
    job = make_job()
    held = claimed_on(job, "one")
    silence("one")
    assert place() == 0
    BuildJob.objects.filter(pk=job.pk).update(lease_expires_at=Now())
    assert place() == 1
    assert engine_of(job) == "two"
    assert not BuildJob.objects.writable(held.fence).exists()
    assert BuildJob.objects.claim(job.pk, worker_id="v", lease=LEASE, engine="two") is not None


def test_a_job_that_may_have_a_container_never_moves() -> None:
    make_engine("one")
    make_engine("two")
    job = make_job()
    claim(job)
    BuildJob.objects.filter(pk=job.pk).update(
        status="succeeded",
        published_digest="sha256:0",
        finished_at=Now(),
        engine_name="one",
        lease_expires_at=Now(),
    )
    silence("one")
    assert place() == 0
    assert BuildJob.objects.claim(job.pk, worker_id="v", lease=LEASE, engine="two") is None
    assert BuildJob.objects.claim(job.pk, worker_id="v", lease=LEASE, engine="one") is not None


def test_containers_that_wait_count_as_memory_that_is_not_free() -> None:
    make_engine("first", memory=8 * GIB)
    make_engine("second", memory=7 * GIB)
    plan = WarmPlan.objects.create(key="one", shape={"memory_mb": 2048})
    member = WarmMember.objects.create(plan=plan, engine_id="id-of-first")
    job = make_job()
    place()
    assert engine_of(job) == "second"
    # What a run has claimed is counted with its job.
    run_id = job.attempt.run_id
    WarmMember.objects.filter(pk=member.pk).update(
        status="claimed", run_id=run_id, claimed_at=Now()
    )
    other = make_job()
    place()
    assert engine_of(other) == "first"
