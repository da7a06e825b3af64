"""The steps of a build job that change several rows, each one statement.

A step asks for the worker's lease and changes the job, its attempt, runtime, sandbox and events in
the same statement, so that there is no moment between them: the lease is lost before the step, and
nothing is written, or the step is whole. Each may be sent again when its answer was lost with the
connection, and then changes nothing more. The start of a job, which changes its run as well, is
``runs.boot_runs.start_boot_run``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from django.db import connection

from controlplane.database.ids import uuid7
from controlplane.work.leases import Fence, lease_lost
from workspaces.models import BuildJob
from workspaces.runtimes.base import LaunchedRuntime


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
