"""The steps of a build job that change several rows, each one statement.

A step asks for the worker's lease and changes the job, its attempt, runtime, sandbox and events in
the same statement, so that there is no moment between them: the lease is lost before the step, and
nothing is written, or the step is whole. Each may be sent again when its answer was lost with the
connection, and then changes nothing more. The start of a job, which changes its run as well, is
``runs.boot_runs.start_job``. A cancellation asks for no lease, and ends it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from django.db import connection

from controlplane.database.ids import uuid7
from controlplane.work.leases import Fence, lease_lost
from workspaces.models import BuildJob
from workspaces.runtimes.base import LaunchedRuntime


@dataclass(frozen=True, slots=True)
class SamePlan:
    """An image that was published of a plan before, and whose the job's own repository is.

    ``repository_owner`` is None while another one may be claiming it.
    """

    repository: str
    digest: str
    repository_owner: str | None


def find_same_plan(fence: Fence, plan_hash: str, *, owner_user_id: str) -> SamePlan | None:
    """Return the latest image of a plan in the job's registry; None when there is none.

    Where there is one, the job's repository becomes the owner's unless it is somebody's. Raises
    ``LeaseLost``, having written nothing, when the job is not held any more, or was cancelled.
    """
    given = {**_of(fence), "hash": plan_hash, "owner": owner_user_id, "claim": uuid7()}
    row = _row(_SAME_PLAN, given)
    if row is None:
        raise lease_lost(fence)
    return None if row[0] is None else SamePlan(*row)


_SAME_PLAN = """
WITH job AS (
    SELECT registry_id, repository FROM workspaces_buildjob
    WHERE id = %(job)s AND worker_id = %(worker)s AND attempt_count = %(count)s
        AND status <> 'cancelled'
),
earlier AS (
    SELECT published.repository, published.published_digest
    FROM workspaces_buildjob AS published JOIN job USING (registry_id)
    WHERE published.status = 'succeeded' AND published.plan_hash = %(hash)s
        AND published.plan_hash <> '' AND published.image_removed_at IS NULL
    ORDER BY published.id DESC LIMIT 1
),
known AS (
    SELECT repository.owner_user_id
    FROM workspaces_publishedrepository AS repository JOIN job
        ON repository.registry_id = job.registry_id AND repository.name = job.repository
),
made AS (
    INSERT INTO workspaces_publishedrepository (id, registry_id, name, owner_user_id)
    SELECT %(claim)s, job.registry_id, job.repository, %(owner)s FROM job, earlier
    WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT (registry_id, name) DO NOTHING
    RETURNING owner_user_id
)
SELECT earlier.repository, earlier.published_digest,
    coalesce((SELECT owner_user_id FROM known), (SELECT owner_user_id FROM made))
FROM job LEFT JOIN earlier ON true
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What a job has published: the image, the hash of its plan, whether nothing was built."""

    plan_hash: str
    reused: bool
    reference: str
    digest_reference: str
    digest: str


def publish(fence: Fence, publication: Publication) -> None:
    """Write the published image to the job, and the ``pending`` runtime that it is for.

    From now on the container may exist on the job's engine, and no worker of another one launches
    it. The lease stays, because the launch is still to come. Raises ``LeaseLost``, having written
    nothing, when the job is not held any more, or was cancelled.
    """
    told = {
        "reference": publication.reference,
        "digestReference": publication.digest_reference,
        "digest": publication.digest,
        "reused": publication.reused,
    }
    given = {**_of(fence), **asdict(publication), "told": json.dumps(told)}
    if _row(_PUBLISH, given | _event_ids()) is not None:
        return
    # Written already where only the answer was lost, as each worker publishes once.
    held = BuildJob.objects.writable(fence)
    if not held.filter(status=BuildJob.Status.SUCCEEDED).exists():
        raise lease_lost(fence)


_PUBLISH = """
WITH job AS (
    UPDATE workspaces_buildjob SET
        status = 'succeeded',
        plan_hash = %(plan_hash)s,
        reused = %(reused)s,
        published_reference = %(reference)s,
        published_digest_reference = %(digest_reference)s,
        published_digest = %(digest)s,
        error_code = '',
        error_message = '',
        finished_at = statement_timestamp(),
        updated_at = statement_timestamp()
    WHERE id = %(job)s AND worker_id = %(worker)s AND attempt_count = %(count)s
        AND status = 'running'
    RETURNING attempt_id, engine_name
),
attempt AS (
    SELECT attempt.id, attempt.run_id, attempt.workspace_id, job.engine_name
    FROM workspaces_attempt AS attempt JOIN job ON job.attempt_id = attempt.id
),
runtime AS (
    INSERT INTO workspaces_runtimeinstance (
        run_id, attempt_id, engine_name, status, adapter, resource_id, reference, endpoint,
        engine_id, error_code, error_message, created_at, updated_at)
    SELECT run_id, id, engine_name, 'pending', '', '', '', '', '', '', '',
        statement_timestamp(), statement_timestamp()
    FROM attempt
),
events AS (
    INSERT INTO workspaces_workspaceevent (id, workspace_id, attempt_id, type, message, data)
    SELECT event.id, attempt.workspace_id, attempt.id, event.type, event.message, event.data
    FROM attempt, (VALUES
        (%(first)s::uuid, 'image.published', 'The image was published.', %(told)s::jsonb),
        (%(second)s::uuid, 'runtime.pending', 'The workspace is being launched.', '{}'::jsonb)
    ) AS event (id, type, message, data)
)
SELECT attempt_id FROM job
"""


def finish(fence: Fence, launched: LaunchedRuntime) -> None:
    """Write that the workspace runs and is ready, and release the job for good.

    An attempt that is over stays as it is. Raises ``LeaseLost``, having written nothing, when the
    job is not held any more, or was cancelled.
    """
    running = {
        "adapter": launched.adapter,
        "resourceId": launched.resource_id,
        "reference": launched.reference,
    }
    given = {**_of(fence), **asdict(launched), "told": json.dumps(running)}
    if _row(_FINISH, given | _event_ids()) is None:
        raise lease_lost(fence)


_FINISH = """
WITH job AS (
    UPDATE workspaces_buildjob SET
        lease_expires_at = NULL,
        updated_at = statement_timestamp()
    WHERE id = %(job)s AND worker_id = %(worker)s AND attempt_count = %(count)s
        AND status <> 'cancelled'
    RETURNING attempt_id, engine_name
),
attempt AS (
    UPDATE workspaces_attempt AS attempt SET
        status = 'succeeded',
        finished_at = statement_timestamp(),
        updated_at = statement_timestamp()
    FROM job
    WHERE attempt.id = job.attempt_id AND attempt.status IN ('queued', 'running')
    RETURNING attempt.id, attempt.run_id, attempt.workspace_id, job.engine_name
),
runtime AS (
    UPDATE workspaces_runtimeinstance AS runtime SET
        status = 'running',
        adapter = %(adapter)s,
        resource_id = %(resource_id)s,
        reference = %(reference)s,
        endpoint = %(endpoint)s,
        engine_id = %(engine_id)s,
        engine_name = attempt.engine_name,
        launched_at = statement_timestamp(),
        updated_at = statement_timestamp()
    FROM attempt WHERE runtime.run_id = attempt.run_id
),
events AS (
    INSERT INTO workspaces_workspaceevent (id, workspace_id, attempt_id, type, message, data)
    SELECT event.id, attempt.workspace_id, attempt.id, event.type, event.message, event.data
    FROM attempt, (VALUES
        (%(first)s::uuid, 'runtime.running', 'The workspace runs.', %(told)s::jsonb),
        (%(second)s::uuid, 'attempt.succeeded', 'The workspace is ready.', '{}'::jsonb)
    ) AS event (id, type, message, data)
),
shown AS (
    UPDATE workspaces_sandbox AS sandbox SET status = 'ready', updated_at = statement_timestamp()
    FROM attempt WHERE sandbox.latest_attempt_id = attempt.id
)
SELECT attempt_id FROM job
"""


def fail(fence: Fence, *, code: str, message: str) -> None:
    """Write that the job has failed, its runtime and its attempt with it, and release the job.

    What was over before stays as it is. Raises ``LeaseLost``, having written nothing, when the job
    is not held any more, or was cancelled.
    """
    given = {
        **_of(fence),
        "outcome": "failed",
        "code": code,
        "message": message,
        "runtime_event": "runtime.failed",
        "attempt_event": "attempt.failed",
        "attempt_told": json.dumps({"errorCode": code} if code else {}),
    }
    if _row(_FAIL, given | {"runtime_told": given["attempt_told"]} | _event_ids()) is None:
        raise lease_lost(fence)


def cancel(job_id: UUID, *, reason: str) -> str | None:
    """Write that a job is cancelled, its runtime and its attempt with it; return its status before.

    A worker that is at it has lost its lease then. None, having written nothing, when it is too
    late: the job has failed or was cancelled before, or its workspace runs.
    """
    given = {
        "job": job_id,
        "outcome": "cancelled",
        "code": "",
        "message": reason,
        "runtime_event": "runtime.stopped",
        "runtime_told": json.dumps({"errorCode": "cancelled"}),
        "attempt_event": "attempt.cancelled",
        "attempt_told": "{}",
    }
    row = _row(_CANCEL, given | _event_ids())
    return None if row is None else str(row[0])


_END_ATTEMPT = """
attempt AS (
    UPDATE workspaces_attempt AS attempt SET
        status = %(outcome)s,
        error_code = %(code)s,
        error_message = %(message)s,
        finished_at = statement_timestamp(),
        updated_at = statement_timestamp()
    FROM job
    WHERE attempt.id = job.attempt_id AND attempt.status IN ('queued', 'running')
    RETURNING attempt.id
),
events AS (
    INSERT INTO workspaces_workspaceevent (id, workspace_id, attempt_id, type, message, data)
    SELECT event.id, attempt.workspace_id, attempt.id, event.type, %(message)s, event.data
    FROM (
        SELECT %(first)s::uuid, attempt_id, %(runtime_event)s, %(runtime_told)s::jsonb FROM runtime
        UNION ALL
        SELECT %(second)s::uuid, id, %(attempt_event)s, %(attempt_told)s::jsonb FROM attempt
    ) AS event (id, attempt_id, type, data)
    JOIN workspaces_attempt AS attempt ON attempt.id = event.attempt_id
),
shown AS (
    UPDATE workspaces_sandbox AS sandbox SET
        status = %(outcome)s,
        updated_at = statement_timestamp()
    FROM job
    WHERE sandbox.latest_attempt_id = job.attempt_id
        AND sandbox.status NOT IN (%(outcome)s, 'cancelled')
)
"""
_FAIL = f"""
WITH job AS (
    UPDATE workspaces_buildjob SET
        status = 'failed',
        error_code = %(code)s,
        error_message = %(message)s,
        finished_at = statement_timestamp(),
        lease_expires_at = NULL,
        updated_at = statement_timestamp()
    WHERE id = %(job)s AND worker_id = %(worker)s AND attempt_count = %(count)s
        AND status <> 'cancelled'
    RETURNING attempt_id
),
runtime AS (
    INSERT INTO workspaces_runtimeinstance AS runtime (
        run_id, attempt_id, status, adapter, resource_id, reference, endpoint, engine_id,
        error_code, error_message, finished_at, created_at, updated_at)
    SELECT attempt.run_id, attempt.id, 'failed', '', '', '', '', '', %(code)s, %(message)s,
        statement_timestamp(), statement_timestamp(), statement_timestamp()
    FROM workspaces_attempt AS attempt JOIN job ON job.attempt_id = attempt.id
    ON CONFLICT (run_id) DO UPDATE SET
        status = excluded.status,
        error_code = excluded.error_code,
        error_message = excluded.error_message,
        finished_at = excluded.finished_at,
        updated_at = excluded.updated_at
    WHERE runtime.status NOT IN ('failed', 'stopped')
    RETURNING runtime.attempt_id
),
{_END_ATTEMPT}
SELECT attempt_id FROM job
"""  # noqa: S608 - ours
_CANCEL = f"""
WITH before AS (
    SELECT id, status FROM workspaces_buildjob WHERE id = %(job)s FOR UPDATE
),
job AS (
    UPDATE workspaces_buildjob AS job SET
        status = 'cancelled',
        error_message = %(message)s,
        finished_at = statement_timestamp(),
        lease_expires_at = NULL,
        updated_at = statement_timestamp()
    FROM before
    WHERE job.id = before.id AND (before.status IN ('queued', 'running')
        OR before.status = 'succeeded' AND job.lease_expires_at IS NOT NULL)
    RETURNING job.attempt_id, before.status
),
runtime AS (
    UPDATE workspaces_runtimeinstance AS runtime SET
        status = 'stopped',
        error_code = 'cancelled',
        error_message = %(message)s,
        finished_at = statement_timestamp(),
        updated_at = statement_timestamp()
    FROM job
    WHERE runtime.attempt_id = job.attempt_id AND runtime.status NOT IN ('failed', 'stopped')
    RETURNING runtime.attempt_id
),
{_END_ATTEMPT}
SELECT status FROM job
"""  # noqa: S608 - ours


def _of(fence: Fence) -> dict[str, Any]:
    return {"job": fence.row_id, "worker": fence.worker_id, "count": fence.count}


def _event_ids() -> dict[str, Any]:
    """Return the ids of a step's events, which are shown in the order of these."""
    return {"first": uuid7(), "second": uuid7()}


def _row(statement: str, given: Mapping[str, Any]) -> tuple[Any, ...] | None:
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row
