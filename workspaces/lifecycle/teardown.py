"""Carrying out a transition: the containers first, then what the rows say, then the event.

Every step may be repeated, by this worker or another one, after a crash at any point: what was
stopped, read, removed or told already stays so. While the engine or the database is away nothing is
given up: the transition says what it waits for and is tried again.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import structlog
from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from controlplane.database.retries import DATABASE_RETRY_SECONDS, retry_database
from controlplane.work.leases import lease_lost
from workspaces import services as workspaces
from workspaces.credentials.upkeep import keep_renewed
from workspaces.lifecycle.records import records
from workspaces.lifecycle.transitions import reason_of
from workspaces.models import (
    Attempt,
    BuildJob,
    EgressAuthority,
    LeaseLost,
    RuntimeInstance,
    Transition,
    WarmMember,
    Workspace,
    WorkspaceEvent,
)
from workspaces.runtimes.base import LaunchError, RuntimeAdapter

log = structlog.get_logger(__name__)

T = TypeVar("T")

DISK_LIMIT_EXCEEDED = "disk-limit-exceeded"
"""The code of a runtime that took more disk than it may."""
LEASE = timedelta(minutes=3)
"""Longer than any one step takes beside the time that what runs is given to end."""
LETTING_GO = timedelta(minutes=2)
"""How long a worker that lives may take to let go of a job that was cancelled."""
DRAIN_WAITS = (0.5, 2.0, 5.0)
"""How long to wait after each try to read a container, in seconds."""


class RetryLater(Exception):
    """Something is to be waited for; tried again ``after``."""

    def __init__(self, after: timedelta, code: str, message: str) -> None:
        super().__init__(code)
        self.after, self.code, self.message = after, code, message


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionExecutor:
    """Carries out claimed transitions; calls may come from several threads.

    ``grace`` is how long what runs has between TERM and KILL, ``stale`` after how long without a
    heartbeat a worker is taken for dead.
    """

    adapter: RuntimeAdapter
    grace: timedelta
    stale: timedelta

    @property
    def lease(self) -> timedelta:
        """How long a claim stands: longer than any one step takes; each step renews it."""
        return LEASE + self.time_to_stop

    @property
    def time_to_stop(self) -> timedelta:
        """How long a container has to end in order."""
        return 2 * self.grace + timedelta(seconds=5)

    def execute(self, transition: Transition, stopped: threading.Event) -> None:
        """Bring ``transition`` to its end.

        Raises ``LeaseLost`` when it is not this claim's any more, ``RetryLater`` when there
        is something to wait for, ``LaunchError`` when the engine does not do it now.
        """
        _Execution(self, transition, stopped).run()


class _Execution:
    def __init__(
        self, by: TransitionExecutor, transition: Transition, stopped: threading.Event
    ) -> None:
        self._adapter = by.adapter
        self._by = by
        self._transition = transition
        self._fence = transition.fence
        self._stopped = stopped

    def run(self) -> None:
        latest = self._database(self._latest_attempt)
        if latest is not None:
            self._wait_for_worker(latest)
        for attempt in self._attempts(latest):
            self._clear(attempt)
        if latest is not None:
            self._database(lambda: self._end_cancelled_run(latest))
        kind = self._database(lambda: self._finish_stop(latest))
        if kind != self._transition.kind:
            raise RetryLater(timedelta(), "", "")  # it is a delete now, of all containers
        if kind == Transition.Kind.STOP and latest is not None:
            self._remove_rest(latest)
        if kind == Transition.Kind.DELETE:
            self._step()
            removed = self._adapter.remove_volumes(self._transition.workspace_id)
            others = self._other_engines()
            self._database(lambda: self._finish_delete(removed, others))

    # ------------------------------------------------------------ steps

    def _database(self, work: Callable[[], T]) -> T:
        return retry_database(work, timeout=DATABASE_RETRY_SECONDS, cancelled=self._stopped)

    def _step(self) -> None:
        """Before each step: go on only while the claim stands and the worker is not stopping."""
        if self._stopped.is_set():
            raise RetryLater(timedelta(), "", "")
        lease = self._by.lease
        if not self._database(lambda: Transition.objects.renew(self._fence, lease=lease)):
            raise LeaseLost(f"transition {self._fence.row_id} is not held any more")

    def _latest_attempt(self) -> Attempt | None:
        # Not that with the highest id: ids of several machines follow their clocks.
        workspaces_ = Workspace.objects.filter(pk=self._transition.workspace_id)
        latest = workspaces_.values("latest_sandbox__latest_attempt")
        return Attempt.objects.filter(pk__in=latest).first()

    def _wait_for_worker(self, attempt: Attempt) -> None:
        """Put the rest off while a worker is still letting go of the job that was cancelled.

        What it makes until then would otherwise be left behind.
        """
        held = BuildJob.objects.filter(attempt=attempt).still_dropping(
            stale=self._by.stale, since=LETTING_GO
        )
        if self._database(held.exists):
            raise RetryLater(
                timedelta(seconds=0.5),
                "job-held",
                "The build worker is stopping its work on the build.",
            )

    def _require_engine(self, attempt: Attempt) -> None:
        """Leave a transition to a worker of the engine that the workspace runs on."""
        runtime = self._database(RuntimeInstance.objects.filter(attempt=attempt).first)
        if runtime is None or not runtime.engine_id:
            return
        if runtime.status in RuntimeInstance.TERMINAL:
            return
        if self._adapter.engine_id() != runtime.engine_id:
            raise RetryLater(
                timedelta(seconds=2),
                "other-engine",
                "The workspace runs on another engine than that of the worker that looked.",
            )

    def _other_engines(self) -> list[str]:
        """Return the other engines that attempts ran on and where something may still be.

        Their reconcilers remove it, if they ever run again: nobody waits for a machine that may
        have been gone for long.
        """
        runtimes = RuntimeInstance.objects.filter(
            attempt__workspace_id=self._transition.workspace_id
        )
        ids = runtimes.exclude(engine_id="").values_list("engine_id", flat=True)
        engines = set(self._database(lambda: list(ids)))
        return sorted(engines - {self._adapter.engine_id()}) if engines else []

    def _attempts(self, latest: Attempt | None) -> list[Attempt]:
        """Return the attempts that may have something on the engine."""
        if self._transition.kind == Transition.Kind.STOP:
            return [latest] if latest is not None else []
        there = {each.run_id for each in self._adapter.list(self._transition.workspace_id)}
        mine = Attempt.objects.filter(workspace_id=self._transition.workspace_id)
        # A container of the warm pool is not labelled as the workspace's.
        claimed = WarmMember.objects.filter(run_id=OuterRef("run_id"))
        left = mine.filter(Q(run_id__in=there) | Exists(claimed)).order_by("pk")
        found = self._database(lambda: list(left))
        if latest is not None and latest not in found:
            found.append(latest)  # it may have left a network
        return found

    def _clear(self, attempt: Attempt) -> None:
        """End what runs of an attempt, keep its records and what its accounts renewed, remove it.

        Only the last step takes something away that the others need.
        """
        run_id = attempt.run_id
        self._step()
        observed = self._adapter.observe(run_id)
        if observed is None:
            self._require_engine(attempt)
        elif observed.running:
            keep_renewed(self._adapter, run_id)
            self._withdraw(attempt)
            records().cancel_commands(attempt, self._adapter, grace=self._by.grace)
            self._step()
            self._stop(run_id)
        if observed is not None:
            self._step()
            self._drain(run_id)
        self._step()
        if self._transition.kind == Transition.Kind.STOP:
            self._adapter.remove_containers(run_id)
        else:
            self._adapter.remove(run_id)

    def _remove_rest(self, attempt: Attempt) -> None:
        """Remove the network, for which nobody has to wait; the reconciler finds what stays."""
        try:
            self._adapter.remove(attempt.run_id)
        except LaunchError as exc:
            log.info("network_left", run_id=str(attempt.run_id), code=exc.code)

    def _withdraw(self, attempt: Attempt) -> None:
        """Take the accounts out of a workspace whose home is kept: a tool may have put one there.

        Best effort; what is in memory goes with the container.
        """
        given = self._database(lambda: workspaces.references_of(attempt))
        if not given or not attempt.is_persistent:
            return
        try:
            self._adapter.withdraw_credentials(
                attempt.run_id, [reference.account_id for reference in given]
            )
        except LaunchError as exc:
            log.warning("credentials_left", run_id=str(attempt.run_id), code=exc.code)

    def _stop(self, run_id: uuid.UUID) -> None:
        """Have the container end in order. One that does not is killed when it is removed."""
        try:
            self._adapter.stop(run_id, seconds=self._by.time_to_stop.total_seconds())
        except LaunchError as exc:
            self._require_answer()
            log.warning("container_not_stopped", run_id=str(run_id), code=exc.code)

    def _drain(self, run_id: uuid.UUID) -> None:
        """Store what the container still holds of records; it is not removed before.

        Of a container that cannot be read although the engine answers, and not only once, the
        records say what they lack: a workspace must not be able to keep itself from being removed.
        """
        for wait in DRAIN_WAITS:
            try:
                records().collect(self._adapter, run_id)
            except LaunchError as exc:
                self._require_answer()
                log.warning("container_not_drained", run_id=str(run_id), code=exc.code)
                self._stopped.wait(wait)
                self._step()
            except (DatabaseError, InterfaceError):
                raise
            except Exception:
                log.exception("container_not_drained", run_id=str(run_id))
                return
            else:
                return

    def _require_answer(self) -> None:
        """Raise ``LaunchError`` when the engine is away, and it is not one container's fault."""
        self._adapter.engine_id()

    def _end_cancelled_run(self, attempt: Attempt) -> None:
        """End the boot run of a build that was cancelled; one that was launched ends by itself."""
        attempt.refresh_from_db()
        if attempt.status == Attempt.Status.CANCELLED:
            records().end_boot_run(
                attempt, failed=False, code="cancelled", message=attempt.error_message
            )

    # ------------------------------------------------------------ what the rows say

    def _lock(self) -> tuple[Workspace, Transition]:
        """Lock workspace and transition, in the order of whoever asks for something."""
        workspaces_ = Workspace.objects.select_for_update(no_key=True)
        workspace = workspaces_.get(pk=self._transition.workspace_id)
        transition = Transition.objects.writable(self._fence).select_for_update().first()
        if transition is None:
            raise lease_lost(self._fence)
        return workspace, transition

    def _finish_stop(self, latest: Attempt | None) -> str:
        """Write that the workspace is stopped; return what is wanted of it by now."""
        with transaction.atomic():
            workspace, transition = self._lock()
            stopped = latest is not None and workspaces.stop_runtime(
                latest, code=_code(transition), message=reason_of(transition)
            )
            # Who asked for a stop waits for this, also where only a build was to be cancelled.
            if stopped or transition.kind == Transition.Kind.STOP:
                workspaces.record_workspace_event(
                    workspace,
                    WorkspaceEvent.Type.WORKSPACE_STOPPED,
                    "The workspace is stopped; nothing of it is running.",
                )
            if transition.kind == Transition.Kind.STOP:
                _finish(transition)
        return str(transition.kind)

    def _finish_delete(self, volumes: int, other_engines: Sequence[str]) -> None:
        message = "The workspace is deleted; its containers and volumes are gone."
        data: dict[str, Any] = {"volumes": volumes}
        if other_engines:
            message = (
                "The workspace is deleted; its containers and volumes are gone. Leftovers of "
                "attempts on other engines are removed when a build worker checks those engines."
            )
            data["otherEngines"] = list(other_engines)
        with transaction.atomic():
            workspace, transition = self._lock()
            Workspace.objects.filter(pk=workspace.pk).update(
                deleted_at=Now(), expires_at=None, updated_at=Now()
            )
            EgressAuthority.objects.filter(pk=workspace.pk).delete()
            workspaces.record_workspace_event(
                workspace,
                WorkspaceEvent.Type.WORKSPACE_DELETED,
                message,
                data,
            )
            _finish(transition)


def _code(transition: Transition) -> str:
    if transition.kind == Transition.Kind.DELETE:
        return "deleted"
    return {
        Transition.Cause.OPERATOR.value: "stopped-by-operator",
        Transition.Cause.EXPIRED.value: "expired",
        Transition.Cause.DISK.value: DISK_LIMIT_EXCEEDED,
    }.get(transition.cause, "stopped")


def _finish(transition: Transition) -> None:
    Transition.objects.filter(pk=transition.pk).update(
        finished_at=Now(), worker_id="", lease_expires_at=None, waiting_code="", waiting_message=""
    )
