"""A workspace has one live sandbox, whoever asks for another one at the same moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from django.db import connection, transaction

from controlplane.errors import Conflict
from tests.conftest import Api
from tests.factories import make_job
from tests.support.waiting import LONG_WAIT
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.lifecycle.start import retry_sandbox
from workspaces.models import Attempt, BuildJob, Sandbox, Workspace

pytestmark = pytest.mark.django_db(transaction=True)

AT_ONCE = 8

T = TypeVar("T")


def ended() -> BuildJob:
    """Return the job of a workspace that failed."""
    job = make_job()
    assert fail_unclaimed_job(job, code="build-command-failed", message="It failed.")
    return job


def all_at_once(work: Callable[[int], T]) -> list[T]:
    """Run ``work`` in many threads that all wait for the workspace's row, and then go on."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        with transaction.atomic():
            Workspace.objects.select_for_update().get()
            running = [pool.submit(work, number) for number in range(AT_ONCE)]
            deadline = time.monotonic() + LONG_WAIT
            while waiting_for_locks() < AT_ONCE:
                assert time.monotonic() < deadline, "the threads do not wait for the row"
                time.sleep(0.02)
        return [future.result() for future in running]


def waiting_for_locks() -> int:
    """Count who waits in our database: the lock on a transaction itself is in none."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH locks AS MATERIALIZED (SELECT * FROM pg_locks), ours AS"
            " (SELECT pid FROM locks JOIN pg_database ON pg_database.oid = database"
            " WHERE datname = current_database())"
            " SELECT count(DISTINCT pid) FROM locks JOIN ours USING (pid) WHERE NOT granted"
        )
        return int(cursor.fetchone()[0])


def test_only_one_of_many_starts_of_a_workspace_wins(request_body: dict[str, Any]) -> None:
    workspace_id = str(ended().attempt.workspace_id)

    def start(_: int) -> int:
        try:
            body = {**request_body, "workspaceId": workspace_id}
            return Api().request("POST", "/v1/sandboxes", body).status
        finally:
            connection.close()

    statuses = sorted(all_at_once(start))
    assert statuses == [202] + [409] * (AT_ONCE - 1)
    assert Sandbox.objects.count() == 2


def test_only_one_of_many_retries_of_a_sandbox_wins() -> None:
    sandbox = ended().attempt.sandbox

    def retry(_: int) -> bool:
        try:
            retry_sandbox(sandbox, requested_by="ada")
        except Conflict:
            return False
        finally:
            connection.close()
        return True

    won = all_at_once(retry)
    assert won.count(True) == 1
    assert Attempt.objects.count() == 2
