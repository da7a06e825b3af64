"""What is asked of the queue of build jobs, one guard at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from tests.factories import LEASE, claim, make_job, make_worker
from tests.support.engines import make_engine
from workspaces.models import BuildJob, Engine, RuntimeInstance, Sandbox, Workspace

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
STALE = timedelta(minutes=20)
DIGEST = "sha256:" + "0" * 64


def jobs() -> Any:
    return BuildJob.objects


def change(job: BuildJob, **values: Any) -> BuildJob:
    """Write to a job past all guards, and return it anew."""
    assert jobs().filter(pk=job.pk).update(**values) == 1
    return BuildJob.objects.get(pk=job.pk)


def publish(job: BuildJob, **values: Any) -> BuildJob:
    """Have a job done, with an image."""
    done = {"status": "succeeded", "published_digest": DIGEST, "finished_at": Now()}
    return change(job, **done, **values)


def cancelled(job: BuildJob, **values: Any) -> BuildJob:
    done = {"status": "cancelled", "finished_at": Now(), "lease_expires_at": None}
    return change(job, **{**done, **values})


def waiting_build(owner: str, *, queued: int = 0) -> BuildJob:
    """Return a job that waits for a build slot, queued so many seconds ago."""
    job = make_job(queued_at=Now() - timedelta(seconds=queued), lane=BuildJob.Lane.BUILD)
    Workspace.objects.filter(pk=job.attempt.workspace_id).update(owner_user_id=owner)
    return job


# ---------------------------------------------------------------- engines


def test_a_job_goes_to_a_worker_of_the_engine_that_it_was_placed_on_and_to_no_other() -> None:
    job = make_job(engine_name="one")
    assert list(jobs().of_engine("one")) == [job]
    assert list(jobs().of_engine("two")) == []
    assert list(jobs().of_engine("")) == [job], "a worker of any engine"


def test_what_was_not_placed_is_for_the_only_engine_and_waits_where_there_are_several() -> None:
    job = make_job()
    make_engine("one")
    assert list(jobs().of_engine("one")) == [job]
    make_engine("two")
    assert list(jobs().of_engine("one")) == []


def test_an_image_that_was_published_before_there_were_several_engines_is_launched_by_any() -> None:
    make_engine("one")
    make_engine("two")
    job = publish(make_job())
    assert list(jobs().of_engine("one")) == [job]


def test_an_engine_that_takes_no_starts_gets_nothing_new_and_what_it_has_begun() -> None:
    make_engine("one", state=Engine.State.DRAINING)
    make_job(engine_name="one")
    begun = claim(make_job(engine_name="one"))
    assert list(jobs().of_engine("one")) == [begun]


def test_who_claims_a_job_or_a_build_writes_its_engine_to_it_if_it_serves_one() -> None:
    job = make_job()
    waiting_build("usr_a")
    assert jobs().claim(job.pk, worker_id="w", lease=LEASE, engine="one").engine_name == "one"
    assert jobs().claim_build(worker_id="w", lease=LEASE, engine="one").engine_name == "one"
    placed, other = make_job(engine_name="two"), waiting_build("usr_a")
    assert claim(placed).engine_name == "two"
    assert jobs().claim_build(worker_id="w", lease=LEASE).pk == other.pk
    other.refresh_from_db()
    assert other.engine_name == ""


# ---------------------------------------------------------------- places


def test_the_place_of_a_job_is_how_many_were_queued_earlier_for_a_start() -> None:
    last, first, second = (
        make_job(queued_at=Now() - timedelta(seconds=ago)) for ago in (1, 30, 20)
    )
    waiting_build("usr_a", queued=60)
    claimed = claim(make_job(queued_at=Now() - timedelta(seconds=60)))
    ahead = dict(jobs().with_jobs_ahead(at_most=2).values_list("pk", "jobs_ahead"))
    assert [ahead[job.pk] for job in (first, second, last, claimed)] == [0, 1, 2, None]


def test_ahead_of_a_placed_job_are_those_of_its_engine_and_of_none_yet() -> None:
    names = ("one", "two", "", "one", "two", "")
    queued = [
        make_job(engine_name=name, queued_at=Now() - timedelta(seconds=30 - place))
        for place, name in enumerate(names)
    ]
    ahead = dict(jobs().with_jobs_ahead(at_most=9).values_list("pk", "jobs_ahead"))
    assert [ahead[job.pk] for job in queued] == [0, 0, 2, 2, 2, 5]
    ahead = dict(jobs().with_jobs_ahead(at_most=2).values_list("pk", "jobs_ahead"))
    assert [ahead[job.pk] for job in queued] == [0, 0, 2, 2, 2, None]


def test_the_places_of_any_number_of_jobs_are_read_once() -> None:
    for name in ("one", "two", "two"):
        make_job(engine_name=name)
    plan = jobs().with_jobs_ahead(at_most=9).explain(analyze=True)
    assert "InitPlan" in plan
    assert "SubPlan" not in plan


def test_a_place_behind_more_jobs_than_are_counted_is_not_told() -> None:
    queued = [make_job(queued_at=Now() - timedelta(seconds=ago)) for ago in (30, 20, 10)]
    ahead = dict(jobs().with_jobs_ahead(at_most=1).values_list("pk", "jobs_ahead"))
    assert [ahead[job.pk] for job in queued] == [0, 1, None]


def test_a_job_is_overdue_when_it_was_queued_long_ago_or_placed_on_the_engine() -> None:
    old, older = (make_job(queued_at=Now() - ago) for ago in (HOUR, 2 * HOUR))
    placed, elsewhere = make_job(engine_name="one"), make_job(engine_name="two")
    waiting_build("usr_a", queued=7200)
    claim(make_job(queued_at=Now() - 2 * HOUR))
    assert list(jobs().overdue(overdue=HOUR)) == [older, old]
    assert list(jobs().overdue(overdue=HOUR, engine="one")) == [older, old, placed]
    assert elsewhere not in jobs().overdue(overdue=HOUR, engine="one")


# ---------------------------------------------------------------- tries


def test_a_try_that_was_given_back_does_not_count_and_is_free_at_once() -> None:
    job = claim(make_job(max_attempts=3))
    assert jobs().give_back(job.fence) == 1
    job.refresh_from_db()
    assert (job.attempt_count, job.max_attempts) == (1, 4)
    assert claim(job, "worker-b").attempt_count == 2


def test_only_a_job_that_is_being_built_waits_for_a_build_slot() -> None:
    launching = publish(claim(make_job()))
    assert not jobs().wait_for_build_slot(launching.fence)
    building = claim(make_job())
    before = change(building, updated_at=Now() - HOUR).updated_at
    assert jobs().wait_for_build_slot(building.fence)
    building.refresh_from_db()
    assert building.updated_at > before


def test_a_build_slot_is_for_what_waits_for_one() -> None:
    make_job()
    change(claim(make_job()), lane=BuildJob.Lane.BUILD)
    assert jobs().claim_build(worker_id="w", lease=LEASE) is None
    waits = waiting_build("usr_a")
    claimed = jobs().claim_build(worker_id="w", lease=LEASE)
    assert claimed.pk == waits.pk
    assert claimed.updated_at > waits.updated_at


def test_of_an_owners_jobs_only_builds_under_way_count_against_it() -> None:
    """Not what starts, what launches, what waits, or what others build."""
    first, second = waiting_build("usr_a", queued=20), waiting_build("usr_b", queued=10)
    starting, launching, others = (make_job() for _ in range(3))
    for job, owner in ((starting, "usr_a"), (launching, "usr_a"), (others, "usr_c")):
        Workspace.objects.filter(pk=job.attempt.workspace_id).update(owner_user_id=owner)
        claim(job)
    publish(launching, lane=BuildJob.Lane.BUILD)
    change(others, lane=BuildJob.Lane.BUILD)
    waiting_build("usr_a", queued=5)
    assert jobs().claim_build(worker_id="w", lease=LEASE).pk == first.pk
    # Now one of the first owner's is under way, so the other owner is next.
    assert jobs().claim_build(worker_id="w", lease=LEASE).pk == second.pk


def test_every_write_behind_the_fence_says_when_it_was() -> None:
    job = claim(make_job())
    before = change(job, updated_at=Now() - HOUR).updated_at
    jobs().write(job.fence, plan_hash="p")
    job.refresh_from_db()
    assert (job.plan_hash, job.updated_at > before) == ("p", True)


# ---------------------------------------------------------------- cancelled jobs


def test_only_the_worker_of_a_cancelled_job_drops_it() -> None:
    claimed = claim(make_job())
    jobs().drop(claimed.fence)
    claimed.refresh_from_db()
    assert claimed.released_at is None, "it was not cancelled"
    cancelled(claimed)
    other = cancelled(claim(make_job()))
    jobs().drop(claimed.fence)
    claimed.refresh_from_db()
    other.refresh_from_db()
    assert (claimed.released_at is None, other.released_at is None) == (False, True)


@pytest.mark.parametrize(
    "values",
    [
        {"status": "running", "finished_at": None, "lease_expires_at": Now() + HOUR},
        {"status": "failed", "error_message": "It failed."},
        {"released_at": Now()},
        {"finished_at": Now() - 2 * HOUR},
        {"worker_id": ""},
        {"worker_id": "dead"},
        {"worker_id": "unheard"},
    ],
    ids=["at work", "failed", "dropped", "long ago", "unclaimed", "dead worker", "no worker"],
)
def test_a_cancelled_job_is_waited_for_while_its_worker_lives_and_not_for_ever(
    values: dict[str, Any],
) -> None:
    make_worker("worker-a")
    make_worker("")
    make_worker("dead", seen=2 * STALE)
    job = cancelled(claim(make_job()))
    assert list(jobs().still_dropping(stale=STALE, since=HOUR)) == [job]
    change(job, **values)
    assert list(jobs().still_dropping(stale=STALE, since=HOUR)) == []


# ---------------------------------------------------------------- images


def test_an_image_is_there_from_its_publication_until_it_is_removed() -> None:
    make_job()
    job = publish(make_job())
    publish(make_job(), image_removed_at=Now())
    assert list(jobs().with_image()) == [job]


def test_the_latest_image_of_a_sandbox_is_that_of_its_newest_job_with_one() -> None:
    first = publish(make_job())
    newer, newest = (
        BuildJob.objects.create(
            attempt=first.attempt, registry_id="default", repository="r", tag="t", max_attempts=3
        )
        for _ in range(2)
    )
    publish(make_job())
    sandbox = Sandbox.objects.get(pk=first.attempt.sandbox_id)
    assert jobs().latest_published(sandbox) == first
    publish(newer)
    assert jobs().latest_published(sandbox) == newer
    assert newest.pk > newer.pk
    other = Sandbox.objects.get(pk=make_job().attempt.sandbox_id)
    assert jobs().latest_published(other) is None


def unneeded() -> BuildJob:
    """Return the job of a workspace that was deleted: nobody needs its image."""
    job = publish(make_job())
    Workspace.objects.filter(pk=job.attempt.workspace_id).update(deleted_at=Now())
    assert not jobs().needing_their_image().exists()
    return job


def test_an_image_is_needed_while_it_is_launched() -> None:
    job = change(unneeded(), lease_expires_at=Now() + HOUR, worker_id="w", claimed_at=Now())
    assert claim(make_job()).published_digest == ""
    assert list(jobs().needing_their_image()) == [job], "one that is built has none yet"


@pytest.mark.parametrize("status", RuntimeInstance.Status.values)
def test_an_image_is_needed_while_its_runtime_is_live(status: str) -> None:
    job = unneeded()
    RuntimeInstance.objects.create(
        run_id=job.attempt.run_id,
        attempt=job.attempt,
        status=status,
        adapter="docker",
        resource_id="c",
        reference="c",
        endpoint="docker-exec://c",
        launched_at=Now(),
    )
    needed = status in RuntimeInstance.LIVE
    assert jobs().needing_their_image().exists() is needed


def test_of_a_workspace_the_latest_image_of_the_latest_sandbox_is_needed_and_no_other() -> None:
    job = publish(make_job())
    workspace = Workspace.objects.filter(pk=job.attempt.workspace_id)
    workspace.update(latest_sandbox=job.attempt.sandbox_id)
    assert list(jobs().needing_their_image()) == [job]
    later = BuildJob.objects.create(
        attempt=job.attempt, registry_id="default", repository="r", tag="t", max_attempts=3
    )
    assert list(jobs().needing_their_image()) == [job], "the later one has no image"
    later = publish(later)
    assert list(jobs().needing_their_image()) == [later]
    other = publish(make_job())
    others = Workspace.objects.filter(pk=other.attempt.workspace_id)
    others.update(latest_sandbox=other.attempt.sandbox_id)
    assert list(jobs().needing_their_image().order_by("pk")) == [later, other]
    workspace.update(latest_sandbox=None)
    assert list(jobs().needing_their_image()) == [other]
