"""The specification's table of states and transitions, through the queue, on real parts."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from controlplane.work import amqp
from controlplane.work.models import Heartbeat
from tests.conftest import OWNER
from tests.stack.processes import end
from tests.stack.sandboxes import hold
from tests.stack.service import Stack, Started, install
from tests.stack.worker_process import dead_letters, eventually, settled
from tests.support.waiting import LONG_WAIT
from workspaces.lifecycle.build_messages import BUILD_REQUESTED
from workspaces.models import RuntimeInstance

pytestmark = pytest.mark.docker


def slow_build() -> tuple[dict[str, Any], dict[str, str]]:
    """Return a blueprint that nothing was built of yet, and what holds it at each stage."""
    (building, build), (launching, launch) = hold(), hold()
    spec = {"harness": install(f"echo {uuid.uuid4()}; {building}"), **setup(launching)}
    return spec, {"building": build, "launching": launch}


def setup(*scripts: str) -> dict[str, Any]:
    """Return the steps of a blueprint."""
    return {"lifecycle": {"setup": [{"run": script} for script in scripts]}}


def watched(stack: Stack, started: Started, holds: dict[str, str]) -> Started:
    """Read a sandbox to its end; each stage goes on once it was seen."""
    path = f"/v1/sandboxes/{started.answer['sandboxId']}"

    def read() -> Any:
        shown = stack.api.get(path).body
        if held := holds.get((shown.get("reason") or {}).get("code", "")):
            end(held)
        return shown

    started.readings = settled(read, timeout=LONG_WAIT)
    return started


@pytest.fixture(scope="module")
def launched(stack: Stack) -> Started:
    """A sandbox that went all the way; its image was really built."""
    spec, holds = slow_build()
    started = watched(stack, stack.ask(spec), holds)
    assert started.body["status"] == "ready", started.body["error"]
    return started


@pytest.fixture(scope="module")
def unlaunchable(stack: Stack) -> Started:
    """A sandbox whose image was published and whose setup fails."""
    step = {"id": "install the moon", "run": "echo no moon today >&2; exit 3"}
    script, argument = hold()
    spec: dict[str, Any] = {"lifecycle": {"setup": [{"run": script}, step]}}
    started = watched(stack, stack.ask(spec), {"launching": argument})
    assert started.body["status"] == "failed", started.body["status"]
    eventually(lambda: started.job.attempt.status == "failed", what="the attempt's failure")
    return started


@pytest.fixture(scope="module")
def unbuildable(stack: Stack) -> Started:
    """A sandbox whose build fails."""
    return stack.failed({"harness": install("echo out of luck; exit 7")})


# ---------------------------------------------------------------- success


def test_a_claim_takes_the_job_and_starts_the_attempt(stack: Stack) -> None:
    spec, holds = slow_build()
    started = stack.ask(spec)
    eventually(lambda: started.job.attempt.status == "running", what="a claim")

    job = started.job
    worker = Heartbeat.objects.get()
    assert (job.status, job.worker_id, job.attempt_count) == ("running", worker.pk, 1)
    assert job.claimed_at is not None
    assert job.started_at == job.claimed_at
    assert job.finished_at is None
    assert job.lease_expires_at is not None
    lease = timedelta(minutes=15)  # which may have been renewed since the claim
    assert job.claimed_at + lease <= job.lease_expires_at <= timezone.now() + lease
    assert job.attempt.started_at is not None
    assert job.attempt.finished_at is None
    assert watched(stack, started, holds).body["status"] == "ready"


def test_the_surfaced_status_goes_from_queued_over_running_to_ready(launched: Started) -> None:
    assert launched.answer["status"] == "queued"
    assert launched.statuses[-2:] == ["running", "ready"]
    assert set(launched.statuses) <= {"queued", "running", "ready"}


def test_there_is_a_reason_at_every_stage_until_it_is_ready(launched: Started) -> None:
    assert launched.reasons[-1] is None
    assert all(launched.reasons[:-1])
    assert set(launched.reasons[:-1]) <= {"queued", "building", "launching", "settling"}
    assert {"building", "launching"} <= set(launched.reasons)
    for reading in launched.readings[:-1]:
        reason = reading["reason"]
        assert reason["message"]
        assert reason["since"]
        assert reason["next"]


def test_a_build_that_succeeded_has_its_outputs_and_no_error(
    stack: Stack, launched: Started
) -> None:
    job = launched.job
    assert job.status == "succeeded"
    assert job.published_digest == stack.digest(launched)
    repository = launched.answer["repository"]
    assert job.published_reference.endswith(f"/{repository}:latest")
    assert job.published_digest_reference.endswith(f"/{repository}@{job.published_digest}")
    assert (job.error_code, job.error_message) == ("", "")
    assert job.finished_at is not None
    assert job.lease_expires_at is None
    assert launched.body["publishedImage"]["digest"] == job.published_digest


def test_a_launch_stores_the_endpoint_and_the_attempts_duration(
    stack: Stack, launched: Started
) -> None:
    job = launched.job
    runtime, attempt = job.attempt.runtime, job.attempt
    container = stack.container(launched)
    assert (runtime.status, runtime.adapter) == ("running", "docker")
    assert runtime.resource_id == container.id
    assert runtime.reference == container.name == f"svc-{attempt.run_id}"
    assert runtime.endpoint == f"docker-exec://{container.id}"
    assert runtime.launched_at is not None
    assert attempt.status == "succeeded"
    assert attempt.started_at is not None
    assert attempt.finished_at is not None
    took = (attempt.finished_at - attempt.started_at) / timedelta(milliseconds=1)
    assert attempt.duration_ms == round(took) > 0
    path = f"/v1/workspaces/{launched.answer['workspaceId']}/attempts?ownerUserId={OWNER}"
    (listed,) = stack.api.get(path).body["items"]
    assert (listed["status"], listed["durationMs"]) == ("ready", attempt.duration_ms)


def test_the_container_is_launched_from_the_published_digest(
    stack: Stack, launched: Started
) -> None:
    image = stack.container(launched).attrs["Config"]["Image"]
    assert image == launched.job.published_digest_reference


def test_the_events_tell_the_story_in_order(stack: Stack, launched: Started) -> None:
    events = stack.events(launched)
    assert [event["type"] for event in events] == [
        "workspace.created",
        "attempt.queued",
        "attempt.running",
        "image.published",
        "runtime.pending",
        "runtime.running",
        "attempt.succeeded",
    ]
    times = [event["occurredAt"] for event in events]
    assert times == sorted(times)
    assert all(event["message"] for event in events)


def test_the_message_of_a_job_that_succeeded_is_gone(launched: Started) -> None:
    assert launched.answer["jobId"] not in dead_letters()


def test_a_message_for_a_job_that_is_not_claimable_changes_nothing(
    stack: Stack, launched: Started
) -> None:
    before = launched.job
    container = stack.container(launched).id
    ignored = stack.worker.told.count("job_not_claimable")

    BUILD_REQUESTED.publish(before.pk)
    BUILD_REQUESTED.publish(uuid.uuid4())

    eventually(
        lambda: stack.worker.told.count("job_not_claimable") == ignored + 2, what="both messages"
    )
    after = launched.job
    assert (after.status, after.attempt_count, after.updated_at, after.claimed_at) == (
        *(before.status, before.attempt_count, before.updated_at, before.claimed_at),
    )
    assert stack.container(launched).id == container
    assert str(before.pk) not in dead_letters()


# ---------------------------------------------------------------- failure


def test_a_failed_build_fails_job_runtime_and_attempt(unbuildable: Started) -> None:
    job = unbuildable.job
    runtime, attempt = job.attempt.runtime, job.attempt
    assert (job.status, runtime.status, attempt.status) == ("failed", "failed", "failed")
    for row in (job, runtime, attempt):
        assert row.error_code == "build-command-failed"
        assert "exit code" in row.error_message
        assert "out of luck" in row.error_message
        assert row.finished_at is not None
    assert job.lease_expires_at is None
    assert job.published_digest == ""
    assert unbuildable.body["error"]["code"] == "build-command-failed"
    assert unbuildable.reasons[-1] == "build-command-failed"


def test_a_failed_launch_fails_all_three_and_keeps_what_was_published(
    stack: Stack, unlaunchable: Started
) -> None:
    job = unlaunchable.job
    runtime, attempt = job.attempt.runtime, job.attempt
    assert (job.status, runtime.status, attempt.status) == ("failed", "failed", "failed")
    for row in (job, runtime, attempt):
        assert row.error_code == "step-failed"
        assert "install the moon" in row.error_message
        assert "exit code 3" in row.error_message
        assert "no moon today" in row.error_message
    assert job.published_digest == stack.digest(unlaunchable)
    assert "launching" in unlaunchable.reasons


def test_a_failed_launch_leaves_no_container_and_no_network(
    stack: Stack, unlaunchable: Started
) -> None:
    run = f"svc.run={unlaunchable.answer['runId']}"
    mine: dict[str, str | list[str] | bool] = {"label": run}
    assert stack.engine.containers.list(all=True, filters=mine) == []
    assert stack.engine.networks.list(filters=mine) == []


def test_the_message_of_a_failed_job_is_among_the_dead_letters(
    unbuildable: Started, unlaunchable: Started
) -> None:
    ids = {failed.answer["jobId"] for failed in (unbuildable, unlaunchable)}
    eventually(lambda: ids <= set(dead_letters()), what="the dead letters")
    for job_id in ids:
        assert dead_letters()[job_id] == BUILD_REQUESTED.to_bytes(uuid.UUID(job_id))


def test_the_events_of_a_failure_tell_its_code(stack: Stack, unbuildable: Started) -> None:
    events = stack.events(unbuildable)
    assert [event["type"] for event in events] == [
        *("workspace.created", "attempt.queued", "attempt.running"),
        *("runtime.failed", "attempt.failed"),
    ]
    assert events[-1]["data"]["errorCode"] == "build-command-failed"


def test_a_message_that_is_not_ours_goes_to_the_dead_letters_and_stops_nobody(
    stack: Stack,
) -> None:
    strange = b'{"jobId": "not an id", "and": "more"}'
    amqp.publish(
        settings.RABBITMQ_URL,
        BUILD_REQUESTED.topology(),
        body=strange,
        message_id=f"strange-{time.time_ns()}",
        kind="strange",
        timeout=LONG_WAIT,
    )
    eventually(lambda: strange in dead_letters().values(), what="the strange message")
    assert stack.worker.process.poll() is None


def test_a_failed_sandbox_can_be_started_again_in_its_workspace(
    stack: Stack, unbuildable: Started
) -> None:
    again = stack.ready({}, workspaceId=unbuildable.answer["workspaceId"], relation="retry")
    assert again.answer["workspaceId"] == unbuildable.answer["workspaceId"]
    assert again.answer["sandboxId"] != unbuildable.answer["sandboxId"]
    assert (
        RuntimeInstance.objects.filter(attempt__workspace_id=again.answer["workspaceId"]).count()
        == 2
    )
