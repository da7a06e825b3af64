"""The records of attempts: boot runs, and what is collected of a workspace that ends.

This is what ``workspaces.lifecycle.records`` asks for.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from django.db import connection, transaction
from django.db.models.functions import Coalesce, Now

from accounts.providers import Provider
from accounts.resolution import Reference
from controlplane.database.columns import with_columns
from controlplane.database.ids import uuid7
from controlplane.database.retries import DATABASE_RETRY_SECONDS, retry_database
from controlplane.errors import ControlPlaneError
from controlplane.owner_limits import OwnerLimit
from controlplane.work.leases import Fence, lease_lost
from controlplane.work.notifications import announce
from runs.models import Run, RunHead
from runs.record import egress_endings, store
from runs.record_limits import RECORD_BYTES
from runs.recording.collect import drain, drain_container
from runs.run_messages import CANCELLATIONS
from runs.services import create_boot_run, request_cancel
from workspaces.models import Attempt
from workspaces.runtimes.base import FileReader, LaunchError, RuntimeAdapter

log = structlog.get_logger(__name__)

CALL_SECONDS = 10.0
CANCEL_SECONDS = 30.0
"""How long all the commands of a workspace are told to exit, together."""


def boot_run(attempt: Attempt) -> Run:
    """Return the boot run of an attempt; one without gets its own now."""
    run = Run.objects.filter(pk=attempt.run_id).first()
    if run is not None:
        return run
    with transaction.atomic():
        return create_boot_run(attempt)


@dataclass(frozen=True, slots=True)
class StartedJob:
    """What a job begins with: its boot run, its accounts, and whose its repository is by now.

    The accounts are those that the workspace is given, in the order they were resolved; the
    repository is None's when nobody has published to it.
    """

    run: Run
    accounts: Sequence[Reference]
    repository_owner: str | None


def start_job(attempt: Attempt, fence: Fence) -> StartedJob:
    """Write that the attempt of a claimed job runs, and its boot run with it.

    One statement, which asks for the job's lease. What runs or has ended already stays as it is.
    Raises ``LeaseLost``, having written nothing, when the job is not held any more, or was
    cancelled.
    """
    given = {
        "job": fence.row_id,
        "worker": fence.worker_id,
        "count": fence.count,
        "event": uuid7(),
        "told": json.dumps({"workerId": fence.worker_id, "attemptCount": fence.count}),
    }
    found = list(Run.objects.raw(_START, given))
    if not found:
        raise lease_lost(fence)
    if found[0].pk is None:
        boot_run(attempt)
        return start_job(attempt, fence)
    run = found[0]
    accounts, owner = (vars(run).pop(name) for name in ("given_accounts", "repository_owner"))
    pairs = (one.split(" ") for one in accounts)
    references = [Reference(uuid.UUID(account), Provider(name)) for account, name in pairs]
    return StartedJob(run, references, owner)


_START = with_columns(
    """
WITH job AS (
    SELECT attempt_id, registry_id, repository FROM workspaces_buildjob
    WHERE id = %(job)s AND worker_id = %(worker)s AND attempt_count = %(count)s
        AND status <> 'cancelled'
    FOR UPDATE
),
attempt AS (
    UPDATE workspaces_attempt AS attempt SET
        status = 'running',
        started_at = statement_timestamp(),
        updated_at = statement_timestamp()
    FROM job WHERE attempt.id = job.attempt_id AND attempt.status = 'queued'
    RETURNING attempt.id, attempt.workspace_id
),
event AS (
    INSERT INTO workspaces_workspaceevent (id, workspace_id, attempt_id, type, message, data)
    SELECT %(event)s, workspace_id, id, 'attempt.running', 'A build worker took the attempt.',
        %(told)s::jsonb
    FROM attempt
),
shown AS (
    UPDATE workspaces_sandbox AS sandbox SET status = 'running', updated_at = statement_timestamp()
    FROM attempt WHERE sandbox.latest_attempt_id = attempt.id
),
begun AS (
    UPDATE runs_run AS run SET
        status = 'running',
        started_at = statement_timestamp(),
        updated_at = statement_timestamp()
    FROM job
    WHERE run.attempt_id = job.attempt_id AND run.mode = 'boot' AND run.status = 'queued'
    RETURNING run.*
),
boot_run AS (
    SELECT * FROM begun
    UNION ALL
    SELECT run.* FROM runs_run AS run JOIN job ON run.attempt_id = job.attempt_id
    WHERE run.mode = 'boot' AND NOT EXISTS (SELECT FROM begun)
)
SELECT boot_run.*,
    ARRAY(
        SELECT account_id::text || ' ' || provider FROM workspaces_credentialreference AS given
        WHERE given.attempt_id = job.attempt_id ORDER BY given.id
    ) AS given_accounts,
    (
        SELECT owner_user_id FROM workspaces_publishedrepository AS known
        WHERE known.registry_id = job.registry_id AND known.name = job.repository
    ) AS repository_owner
FROM job LEFT JOIN boot_run ON true
""",
    boot_run=Run,
    run=Run,
)


class BootRuns:
    """Implements ``workspaces.lifecycle.records.Records`` with runs."""

    @property
    def size_limit(self) -> OwnerLimit:
        """How much room the records of one owner may take."""
        return RECORD_BYTES

    def create_boot_run(self, attempt: Attempt) -> Run:
        """Create the run that records an attempt's build and boot, in its transaction."""
        return create_boot_run(attempt)

    def end_boot_run(self, attempt: Attempt, *, failed: bool, code: str, message: str) -> bool:
        """End the boot run of an attempt that failed or was cancelled; False when it had ended.

        What its record lacks, if anything, it says. Inside of a transaction, where nobody can be
        waited for, it is also False while the egress proxy has decisions to store: a sweeper ends
        it then.
        """
        run = boot_run(attempt)
        egress_endings.settle(run)
        if connection.in_atomic_block and not egress_endings.is_settled(run):
            return False
        return store.close_early(
            run.number,
            reason="build-failed" if failed else "cancelled",
            detail=message,
            status=Run.Status.FAILED if failed else Run.Status.CANCELLED,
            error_code=code if failed else "",
            error_message=message if failed else "",
        )

    def settle_egress(self, attempt: Attempt) -> None:
        """Wait a moment until all decisions of the egress proxy are stored; nothing passes then.

        For those who end the boot run in a transaction, before that begins.
        """
        egress_endings.settle(boot_run(attempt))

    def is_being_recorded(self, attempt: Attempt) -> bool:
        """Whether a source of the boot run's record has begun and not been closed yet."""
        open_ = RunHead.objects.filter(run_number=boot_run(attempt).number, source_ended=False)
        return open_.exists()

    def request_cancellation(self, attempt: Attempt) -> None:
        """Mark everything that runs in the workspace as to be cancelled."""
        running = Run.objects.open().filter(attempt=attempt, recorded=True)
        if running.exclude(mode=Run.Mode.BOOT).update(
            cancel_requested_at=Coalesce("cancel_requested_at", Now()), updated_at=Now()
        ):
            announce(CANCELLATIONS)

    def cancel_commands(
        self, attempt: Attempt, adapter: RuntimeAdapter, *, grace: timedelta
    ) -> None:
        """Tell the commands that run in the workspace to exit, so that they count as cancelled.

        Best effort: the container's end is theirs too. A workspace that does not answer, or takes
        its time, cannot keep itself from being stopped, however many commands there are.
        """
        open_ = Run.objects.open().filter(attempt=attempt, recorded=True, mode=Run.Mode.ONE_SHOT)
        seconds = f"{grace.total_seconds():g}"
        deadline = time.monotonic() + CANCEL_SECONDS
        answers = True
        for run in retry_database(lambda: list(open_), timeout=DATABASE_RETRY_SECONDS):
            try:
                retry_database(lambda run=run: request_cancel(run), timeout=DATABASE_RETRY_SECONDS)  # type: ignore[misc]
                if not answers or time.monotonic() >= deadline:
                    continue
                arguments = ["stop", str(run.pk), "--reason", "cancelled", "--grace", seconds]
                adapter.call_agent(attempt.run_id, arguments, timeout=CALL_SECONDS)
            except (ControlPlaneError, LaunchError) as exc:
                log.info("command_not_cancelled", run_id=str(run.pk), reason=type(exc).__name__)
                answers = answers and not isinstance(exc, LaunchError)

    def collect(self, adapter: RuntimeAdapter, run_id: uuid.UUID) -> None:
        """Store what a container still holds of records; raise ``LaunchError`` if unreadable."""
        drain_container(adapter, run_id)

    def collect_from(self, run_id: uuid.UUID, read: FileReader) -> None:
        """Store what a container that is about to be removed holds of records.

        Takes a bounded time and raises nothing: what cannot be stored is missing in the records,
        which say so.
        """
        try:
            drain(read, run_id)
        except Exception as exc:
            log.warning("container_not_collected", run_id=str(run_id), reason=type(exc).__name__)
