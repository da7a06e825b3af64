"""Requests that are repeated with their key after the build queue could not be reached."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from tests.conformance import codes_told
from tests.conftest import OWNER, Answer, Api
from tests.factories import claim
from tests.stack.worker_process import eventually
from tests.support.locked_rows import locked
from tests.support.refused_writes import refused_writes
from tests.support.waiting import LONG_WAIT
from workspaces.lifecycle import step_statements
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.models import Attempt, BuildJob, Sandbox, SandboxRequest

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("build_queue")]
KEY = {"idempotency-key": "k-1"}
IDS = ("sandboxId", "workspaceId", "attemptId", "runId", "jobId")


@contextmanager
def queue_away(settings: Settings) -> Iterator[None]:
    """Point the application at a port where no broker listens, and back at the real one."""
    url = settings.RABBITMQ_URL
    settings.RABBITMQ_URL = "amqp://nobody:nothing@127.0.0.1:1/"
    yield
    settings.RABBITMQ_URL = url


@pytest.fixture
def failed(api: Api, request_body: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The answer to a request that could not be queued; the queue is back since."""
    with queue_away(settings):
        answer: dict[str, Any] = send(api, request_body, expect=502).body
    return answer


def send(api: Api, body: dict[str, Any], *, expect: int = 202) -> Answer:
    return api.post("/v1/sandboxes", body, headers=KEY, expect=expect)


def waiting_for_locks() -> int:
    """How many sessions wait for what somebody else holds."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return int(cursor.fetchone()[0])


def test_two_repeats_at_once_make_one_attempt(
    failed: dict[str, Any], request_body: dict[str, Any]
) -> None:
    def repeat(_: int) -> Answer:
        try:
            return send(Api(), request_body)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        with locked(SandboxRequest.objects.get()):
            repeats = pool.map(repeat, range(2))
            eventually(lambda: waiting_for_locks() == 2, what="both have seen the failure")
        first, second = repeats
    assert first.content == second.content
    assert first.body["sandboxId"] == failed["sandboxId"]
    assert {"idempotency-replayed" in answer.headers for answer in (first, second)} == {True, False}
    assert (Sandbox.objects.count(), Attempt.objects.count()) == (1, 2)
    assert BuildJob.objects.get(status="queued").pk.hex == first.body["jobId"].replace("-", "")


@pytest.mark.parametrize("builds_at_most", [0, 1])
def test_a_live_attempt_that_was_started_otherwise_is_the_answer(
    api: Api,
    failed: dict[str, Any],
    request_body: dict[str, Any],
    settings: Settings,
    builds_at_most: int,
) -> None:
    settings.OWNER_MAX_RUNNING_BUILDS = builds_at_most
    path = f"/v1/workspaces/{failed['workspaceId']}/start"
    started = api.post(path, {"ownerUserId": OWNER}).body
    again = send(api, request_body)
    assert again.headers["idempotency-replayed"] == "true"
    assert {name: again.body[name] for name in IDS} == {name: started[name] for name in IDS}
    assert Attempt.objects.count() == 2
    # From now on it is this request's answer, however it ends.
    fail_unclaimed_job(
        BuildJob.objects.get(pk=started["jobId"]), code="build-command-failed", message="It failed."
    )
    assert send(api, request_body).content == again.content
    assert Attempt.objects.count() == 2


def test_an_attempt_that_was_started_otherwise_and_could_not_be_queued_either_is_none(
    api: Api, failed: dict[str, Any], request_body: dict[str, Any], settings: Settings
) -> None:
    path = f"/v1/workspaces/{failed['workspaceId']}/start"
    with queue_away(settings):
        api.post(path, {"ownerUserId": OWNER}, expect=502)
    again = send(api, request_body)
    assert "idempotency-replayed" not in again.headers
    assert again.body["sandboxId"] == failed["sandboxId"]
    assert Attempt.objects.count() == 3


@pytest.mark.parametrize("ended", [False, True])
def test_a_sandbox_that_has_a_successor_is_not_started_again(
    api: Api, failed: dict[str, Any], request_body: dict[str, Any], ended: bool
) -> None:
    newer = {**request_body, "workspaceId": failed["workspaceId"], "tag": "v2"}
    job = BuildJob.objects.get(pk=api.post("/v1/sandboxes", newer).body["jobId"])
    if ended:
        fail_unclaimed_job(job, code="build-command-failed", message="It failed.")
    answer = send(api, request_body, expect=409)
    assert answer.body["code"] == "sandbox-superseded"
    assert answer.body["code"] in codes_told("POST", "/v1/sandboxes")
    assert Attempt.objects.count() == 2


def test_no_attempt_begins_while_a_worker_is_at_the_job_of_the_one_that_failed(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    """The message has arrived although the broker did not say so, and so has no write to the job.

    What a worker had begun before it goes on until the worker finds out.
    """
    with queue_away(settings), refused_writes("workspaces_buildjob"):
        failed = send(api, request_body, expect=502).body
    job = claim(BuildJob.objects.get())
    refused = send(api, request_body, expect=502).body
    assert refused["code"] == "queue-publish-failed"
    assert {name: refused[name] for name in IDS} == {name: failed[name] for name in IDS}
    assert Attempt.objects.count() == 1
    step_statements.fail(job.fence, code="attempt-over", message="The attempt is over.")
    again = send(api, request_body).body
    assert again["sandboxId"] == failed["sandboxId"]
    assert again["attemptId"] != failed["attemptId"]
    assert Attempt.objects.count() == 2


def test_an_attempt_whose_failure_was_written_nowhere_and_that_a_worker_took_is_the_answer(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    with ExitStack() as refused, queue_away(settings):
        for table in ("workspaces_buildjob", "workspaces_attempt"):
            refused.enter_context(refused_writes(table))
        failed = send(api, request_body, expect=502).body
    claim(BuildJob.objects.get())
    again = send(api, request_body)
    assert again.headers["idempotency-replayed"] == "true"
    assert {name: again.body[name] for name in IDS} == {name: failed[name] for name in IDS}
    assert Attempt.objects.count() == 1


def test_a_failure_that_is_half_written_is_answered_again_until_it_is_whole(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    with queue_away(settings), refused_writes("workspaces_sandbox"):
        failed = send(api, request_body, expect=502).body
    assert Sandbox.objects.get().status == "queued"
    again = send(api, request_body, expect=502).body
    assert again["attemptId"] == failed["attemptId"]
    assert Attempt.objects.count() == 1


def test_a_failure_is_not_marked_on_the_answer_that_another_repeat_has_given_since(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    """One request has written its failure everywhere but to what is remembered of it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER wait_for_test BEFORE UPDATE ON workspaces_sandboxrequest "
            "EXECUTE FUNCTION wait_for_test()"
        )
        cursor.execute("SELECT pg_advisory_lock(4711)")

    def first() -> None:
        try:
            send(Api(), request_body, expect=502)
        finally:
            connection.close()

    try:
        with ThreadPoolExecutor(1) as pool:
            try:
                with queue_away(settings):
                    slow = pool.submit(first)
                    eventually(lambda: waiting_for_locks() == 1, what="it is about to mark it")
                again = send(api, request_body)
            finally:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_advisory_unlock(4711)")
            slow.result(LONG_WAIT)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER wait_for_test ON workspaces_sandboxrequest")
            cursor.execute("DROP FUNCTION wait_for_test()")
    fail_unclaimed_job(
        BuildJob.objects.get(pk=again.body["jobId"]), code="build-command-failed", message="No."
    )
    assert send(api, request_body).content == again.content
    assert Attempt.objects.count() == 2
