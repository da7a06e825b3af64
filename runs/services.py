"""Making runs, and what clients may do to them: ask for the end, and report what is not recorded.

How a recorded run ended is decided by its record alone (``runs.record.store``); a client can only
ask for its end. A run that is not recorded is what its client says it is.

Locks are taken in the order of ``runs.record.store``: the head of the record before the run's row.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction
from django.db.models.functions import Coalesce, Now
from structlog.contextvars import bind_contextvars

from controlplane.database.columns import ROWS_OF_A_STATEMENT
from controlplane.database.ids import IdOrder, uuid7
from controlplane.errors import BadGateway, Conflict, Fault, Gone, NotFound, ValidationFailed
from controlplane.owner_limits import require_room
from controlplane.spelling import format_timestamp
from controlplane.work.amqp import BrokerError
from controlplane.work.notifications import announce
from runs.input.sealed import StartInput, seal_input
from runs.models import Run, RunChange, RunHead, RunQuerySet
from runs.record import egress_decisions, store
from runs.record.new_record import insert_with_head
from runs.record.reading.rows import fetch
from runs.record_limits import RECORD_BYTES
from runs.run_messages import CANCELLATIONS, RUN_REQUESTED, announce_run
from workspaces.models import Attempt, Workspace

log = structlog.get_logger(__name__)

PUBLISH_FAILED = "queue-publish-failed"

TRANSITIONS: Mapping[str, frozenset[str]] = {
    Run.Status.QUEUED: frozenset({Run.Status.RUNNING, Run.Status.FAILED, Run.Status.CANCELLED}),
    Run.Status.RUNNING: frozenset(Run.TERMINAL),
}
"""What may follow what; all other states are final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """What is to be recorded, and perhaps executed, in a workspace.

    ``command`` is ``{executable, args, cwd?}``. A run is ``recorded`` when the
    control plane or its gateway sees what happens; only a one-shot run is executed here.
    """

    workspace: Workspace
    attempt: Attempt | None
    owner_user_id: str
    harness_id: str
    mode: Run.Mode
    recorded: bool
    prompt: str = ""
    command: Mapping[str, Any] | None = None
    given: StartInput = field(default_factory=StartInput)
    time_limit_ms: int | None = None

    @property
    def executed(self) -> bool:
        """Whether a worker starts it."""
        return self.recorded and self.mode == Run.Mode.ONE_SHOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a client says of a run that is not recorded."""

    status: Run.Status
    exit_code: int | None = None
    error_message: str | None = None
    diff: str | None = None
    changed_files: Sequence[Mapping[str, str]] = field(default_factory=list)


def get_run(run_id: uuid.UUID, *, owner_user_id: str | None) -> Run:
    """Return a run; a foreign one is as absent as an unknown one (``NotFound``)."""
    run = Run.objects.owned_by(owner_user_id).filter(pk=run_id).first()
    if run is None:
        raise run_not_found()
    return run


def get_record(run: Run) -> RunHead | None:
    """Return the head of a run's record, None for a run that has none.

    Raises ``Gone`` (``record-removed``) when retention has removed the record.
    """
    head = RunHead.objects.filter(pk=run.number).first()
    if head is not None and head.removed_at is not None:
        raise record_removed(head.removed_at)
    return head


def get_record_number(run_id: uuid.UUID, *, owner_user_id: str | None) -> int:
    """Return the number of a run whose events are to be read; raises as the two above.

    In one statement, because the timeline is asked for over and over.
    """
    found = fetch(_RECORD, {"run": run_id, "owner": owner_user_id})
    if not found:
        raise run_not_found()
    number, removed_at = found[0]
    if removed_at is not None:
        raise record_removed(removed_at)
    return int(number)


_RECORD = """
    SELECT number, removed_at FROM runs_run AS run LEFT JOIN run_head ON run_number = number
    WHERE id = %(run)s AND (%(owner)s::text IS NULL OR run.owner_user_id = %(owner)s)
"""


def run_not_found() -> NotFound:
    """Return the error for a run that is unknown, or another owner's."""
    return NotFound("There is no such run.", code="run-not-found")


def record_removed(when: datetime) -> Gone:
    """Return the error for a record that retention has removed."""
    error = Gone("The record of this run was removed by retention.", code="record-removed")
    error.members["removedAt"] = format_timestamp(when)
    return error


def create_run(new_run: NewRun) -> Run:
    """Create a queued run, and have it executed when that is intended.

    Raises ``OwnerLimitReached`` for one that is to be recorded, ``ServiceUnavailable``
    (``record-signing-key-unset``) for one whose input cannot be sealed, and ``BadGateway``
    (``queue-publish-failed``), with the run failed, when the queue cannot be reached. A crash
    before the message leaves a queued run, which any run worker's sweeper finds.
    """
    with transaction.atomic():
        run = store_run(new_run)
    if new_run.executed:
        _publish_or_fail(run)
    return run


def store_run(new_run: NewRun) -> Run:
    """Write a queued run and, if it is recorded, the head of its record.

    To be called in a transaction; nobody is told of the run. Raises ``OwnerLimitReached``, and
    ``ServiceUnavailable`` (``record-signing-key-unset``) when its input cannot be sealed.
    """
    run_id = uuid7()
    sealed_input = seal_input(new_run.given, run_id=run_id)
    if new_run.recorded:
        require_room(new_run.owner_user_id, [RECORD_BYTES])
    run = Run(
        id=run_id,
        workspace=new_run.workspace,
        attempt=new_run.attempt,
        owner_user_id=new_run.owner_user_id,
        harness_id=new_run.harness_id,
        mode=new_run.mode,
        recorded=new_run.recorded,
        prompt=new_run.prompt,
        command=dict(new_run.command) if new_run.command is not None else None,
        sealed_input=sealed_input,
        time_limit_ms=new_run.time_limit_ms,
    )
    if new_run.recorded:
        insert_with_head(run)
    else:
        run.save(force_insert=True)
    return run


def create_boot_run(attempt: Attempt) -> Run:
    """Create the boot run of ``attempt``, queued, with its id ``attempt.run_id``.

    To be called in the transaction that creates the attempt.
    """
    run = Run(
        id=attempt.run_id,
        workspace_id=attempt.workspace_id,
        attempt=attempt,
        owner_user_id=attempt.sandbox.owner_user_id,
        harness_id=attempt.spec["harness"]["id"],
        mode=Run.Mode.BOOT,
        recorded=True,
    )
    insert_with_head(run)
    egress_decisions.begin(run)
    return run


def list_runs(
    *, owner_user_id: str, workspace_id: uuid.UUID | None, status: str | None, mode: str | None
) -> tuple[RunQuerySet, IdOrder | None]:
    """Return an owner's runs; of one workspace, in one status and of one mode when named.

    Boot runs are among them only when their mode is named. With the order in which the runs can be
    paged through; None: that of the ids, by themselves.
    """
    wanted = {"workspace_id": workspace_id, "status": status, "mode": mode}
    named = {name: value for name, value in wanted.items() if value is not None}
    order = IdOrder("id") if workspace_id is None else None
    rows = Run.objects.owned_by(owner_user_id).filter(**named).defer("sealed_input")
    return (rows.exclude(mode=Run.Mode.BOOT) if mode is None else rows), order


def update_run(run: Run, report: Report, *, named: Sequence[str], from_gateway: bool) -> Run:
    """Do what a client's PATCH asks for: report, cancel, or begin a session; return the run anew.

    ``named`` are the members of a report that it has. Raises ``Conflict`` and ``ValidationFailed``.
    """
    refuse_report(run, report.status, named)
    if not run.recorded:
        return update_reported(run, report)
    if report.status == Run.Status.CANCELLED:
        return request_cancel(run)
    if report.status == Run.Status.RUNNING and from_gateway:
        return begin_session(run)
    raise refused_transition(run, report.status)


def _publish_or_fail(run: Run) -> None:
    """Publish the run's message. When a worker was quicker than a failing publish, it goes on."""
    bind_contextvars(run_id=str(run.pk))
    try:
        RUN_REQUESTED.publish(run.pk)
    except BrokerError as exc:
        log.warning("run_publish_failed", run_id=str(run.pk), reason=str(exc))
        message = "The run queue could not be reached."
        if not _end_queued(
            run, status=Run.Status.FAILED, error_code=PUBLISH_FAILED, error_message=message
        ):
            return
        error = BadGateway(
            "The run queue could not be reached; the run was recorded as failed.",
            code=PUBLISH_FAILED,
        )
        error.members["runId"] = str(run.pk)
        raise error from exc


def _end_queued(run: Run, *, status: Run.Status, **values: str) -> bool:
    """End a recorded run that nobody has begun, in order; False when somebody has."""
    with transaction.atomic():
        RunHead.objects.select_for_update().get(pk=run.number)
        queued = Run.objects.select_for_update().filter(pk=run.pk, status=Run.Status.QUEUED)
        if not queued.exists():
            return False
        cancelled = {"code": None, "signal": None, "reason": "cancelled"}
        exit_ = cancelled if status == Run.Status.CANCELLED else None
        return store.end_in_order(
            run.number, reason="not-started", exit=exit_, status=status, **values
        )


def request_cancel(run: Run) -> Run:
    """Cancel a run, or have a recorded one that runs stopped by who records it; return it anew.

    The status of the latter follows its record: see ``cancel_requested_at``. Raises ``Conflict``
    (``run-transition``) for runs that have ended, and for boot runs, which end with their sandbox.
    """
    if run.mode == Run.Mode.BOOT:
        raise Conflict(
            "A boot run ends with its sandbox; stop the workspace instead.", code="run-transition"
        )
    if not run.recorded:
        return update_reported(run, Report(status=Run.Status.CANCELLED))
    if not _end_queued(run, status=Run.Status.CANCELLED):
        asked = Run.objects.filter(pk=run.pk).open()
        if not asked.update(
            cancel_requested_at=Coalesce("cancel_requested_at", Now()), updated_at=Now()
        ):
            run.refresh_from_db()
            raise refused_transition(run, Run.Status.CANCELLED)
        announce(CANCELLATIONS)
    run.refresh_from_db()
    return run


def begin_session(run: Run) -> Run:
    """Move a recorded interactive run to running, for the gateway that has opened it.

    A worker is told, so that its record is in the database at once and not after the next sweep.
    Raises ``Conflict`` (``run-transition``) when it is not queued, or no session.
    """
    if run.mode != Run.Mode.INTERACTIVE:
        raise refused_transition(run, Run.Status.RUNNING)
    begun = _move(run, Run.Status.RUNNING, started_at=Now())
    transaction.on_commit(lambda: announce_run(run.pk))
    return begun


def end_sessions_not_begun(*, older_than: timedelta) -> int:
    """End the sessions that were announced ``older_than`` ago and never begun; return how many.

    The gateway that announced them has died, or its client went away before.
    """
    waiting = Run.objects.filter(
        mode=Run.Mode.INTERACTIVE,
        recorded=True,
        status=Run.Status.QUEUED,
        queued_at__lt=Now() - older_than,
    )
    return sum(
        _end_queued(
            run,
            status=Run.Status.FAILED,
            error_code="session-not-begun",
            error_message="The session was never started.",
        )
        for run in waiting.order_by("id")[:100]
    )


def update_reported(run: Run, report: Report) -> Run:
    """Write what a client reports of a run that is not recorded; return the run anew.

    Raises ``Conflict`` (``run-transition``) when its status does not lead there.
    """
    if report.status == Run.Status.RUNNING:
        return _move(run, report.status, started_at=Now())
    values: dict[str, Any] = {"finished_at": Now()}
    if report.exit_code is not None or report.status == Run.Status.COMPLETED:
        values["exit_code"] = report.exit_code or 0
    if report.error_message is not None:
        values["error_message"] = report.error_message
    if report.diff is not None:
        values["reported_diff"] = report.diff
    with transaction.atomic():
        moved = _move(run, report.status, **values)
        store.announce_end(moved)
        RunChange.objects.bulk_create(
            (
                RunChange(
                    run_number=run.number,
                    position=position,
                    path=entry["path"].encode(),
                    old_path=entry["old_path"].encode() if "old_path" in entry else None,
                    change=entry["change"],
                )
                for position, entry in enumerate(report.changed_files, start=1)
            ),
            batch_size=ROWS_OF_A_STATEMENT,
        )
    return moved


def _move(run: Run, status: Run.Status, **values: Any) -> Run:
    """Change the status in one guarded statement."""
    sources = [source for source, targets in TRANSITIONS.items() if status in targets]
    rows = Run.objects.filter(pk=run.pk, status__in=sources)
    moved = rows.update(status=status, updated_at=Now(), **values)
    run.refresh_from_db()
    if not moved:
        raise refused_transition(run, status)
    return run


def refused_transition(run: Run, status: Run.Status) -> Conflict:
    """Return the error for a status that the run cannot get, or not from a client."""
    if run.recorded and status not in (Run.Status.RUNNING, Run.Status.CANCELLED):
        detail = f"The run is {run.status}; its record decides whether it becomes {status}."
        return Conflict(detail, code="run-transition")
    return Conflict(f"The run is {run.status} and cannot become {status}.", code="run-transition")


def refuse_report(run: Run, status: Run.Status, members: Sequence[str]) -> None:
    """Raise ``ValidationFailed`` for members that tell how a run ended where that cannot be told.

    A run that begins has not ended, and how a recorded one ended is in its record.
    """
    if run.recorded:
        code, detail = "decided-by-record", "The record of this run decides how it ended."
    elif status in Run.TERMINAL:
        return
    else:
        code, detail = "not-ended", f"A run that is {status} has not ended."
    if members:
        raise ValidationFailed([Fault(code, detail, pointer=f"/{name}") for name in members])
