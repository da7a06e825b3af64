"""How records end that no agent can end any more: the control plane writes what is known.

The codes that a recorded run fails with when its own exit is not in its record:

======================  ==========================================================================
``workspace-gone``      the workspace's container was gone before the run was started
``workspace-ended``     the workspace's container ended or was removed while the run was going on
``record-lost``         the run's spool is not in the workspace any more, or cannot be read
``session-not-begun``   a session was announced and never began
``time-limit-exceeded`` the run was silent for long after its time limit
======================  ==========================================================================
"""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from controlplane.work.leases import Fence
from runs.models import Run, RunCheckpoint, RunHead
from runs.record import egress_endings, settlement, store
from runs.recording import claims
from workspaces.models import ENGINE_GONE, Attempt, RuntimeInstance
from workspaces.runtimes.base import LaunchError, RuntimeAdapter

GONE = "runtime-gone"
NOT_RUNNING = "runtime-not-running"


class Endings:
    """Ends the record of one claimed run; every write is fenced. Database errors pass through."""

    def __init__(self, run: Run, fence: Fence, adapter: RuntimeAdapter) -> None:
        assert run.attempt is not None
        self._run = run
        self._attempt_id = run.attempt.pk
        self._fence = fence
        self._adapter = adapter

    def head(self) -> RunHead:
        """Return where the record stands."""
        return RunHead.objects.get(run_number=self._run.number)

    def has_begun(self) -> bool:
        """Whether a spool of the run was ever seen, be there anything of it or not."""
        head = self.head()
        return bool(head.source_id or head.event_count)

    def begun_for(self) -> timedelta:
        """Return how long ago the first of the record was stored; nothing when none is."""
        stored = RunCheckpoint.objects.filter(run_number=self._run.number).order_by("sequence")
        ago: timedelta | None = (
            stored.annotate(ago=Now() - F("ingested_at")).values_list("ago", flat=True).first()
        )
        return ago or timedelta()

    def not_started(self, code: str, message: str, *, cancelled: bool = False) -> None:
        """End a run of which nothing happened."""
        self._close(
            "not-started",
            message,
            Run.Status.CANCELLED if cancelled else Run.Status.FAILED,
            code=code,
        )

    def lost(self, code: str, message: str, *, cancelled: bool = False) -> None:
        """End a run whose agent cannot tell how it ended; its recorded exit decides, if any."""
        self._close("record-lost", message, self._status(cancelled), code=code, begun=True)

    def may_come_back(self) -> bool:
        """Whether a boot run's container may be created, or started again, by somebody else."""
        if self._run.mode != Run.Mode.BOOT:
            return False
        return RuntimeInstance.objects.filter(
            attempt_id=self._attempt_id,
            status__in=[RuntimeInstance.Status.PENDING, RuntimeInstance.Status.RUNNING],
        ).exists()

    def without_runtime(self) -> bool:
        """End the record of an attempt that came to no container: all of it is known."""
        if RuntimeInstance.objects.filter(attempt_id=self._attempt_id).exists():
            return False
        attempt = Attempt.objects.get(pk=self._attempt_id)
        if attempt.status not in Attempt.TERMINAL:
            return False
        if attempt.status == Attempt.Status.CANCELLED:
            self._close("build-failed", attempt.error_message, Run.Status.CANCELLED)
        else:
            self._close(
                "build-failed", attempt.error_message, Run.Status.FAILED, code=attempt.error_code
            )
        return True

    def without_container(self, error: LaunchError, *, cancelled: bool = False) -> bool:
        """End the record because its container is gone or ended; False while that is not certain.

        What an ended container still holds is to be read before.
        """
        runtime = RuntimeInstance.objects.filter(attempt_id=self._attempt_id).first()
        reason = "container-gone" if error.code == GONE else "runtime-ended"
        if self._run.mode == Run.Mode.BOOT:
            return self._end_boot(runtime, reason)
        if error.code == GONE and not self._is_its_engine(runtime):
            return False
        if not self.has_begun():
            self.not_started(
                "workspace-gone",
                "The workspace's container was gone before the run started.",
                cancelled=cancelled,
            )
            return True
        self._close(
            reason,
            "The workspace's container was removed while the run was going on."
            if error.code == GONE
            else "The workspace's container ended while the run was going on.",
            self._status(cancelled),
            code="workspace-ended",
        )
        return True

    def _end_boot(self, runtime: RuntimeInstance | None, reason: str) -> bool:
        """A boot run is over when its runtime is; until then a container may come."""
        if runtime is None or runtime.status not in RuntimeInstance.TERMINAL:
            return False
        attempt = Attempt.objects.get(pk=self._attempt_id)
        if attempt.status == Attempt.Status.CANCELLED:
            self._close(reason, attempt.error_message or "Cancelled.", Run.Status.CANCELLED)
        elif runtime.status == RuntimeInstance.Status.STOPPED:
            self._close(reason, "The workspace was stopped.", Run.Status.COMPLETED)
        else:
            message = runtime.error_message or "The workspace's container ended."
            self._close(reason, message, Run.Status.FAILED, code=runtime.error_code)
        return True

    def _is_its_engine(self, runtime: RuntimeInstance | None) -> bool:
        """Whether our engine's word counts; of one that is gone for good it does."""
        if runtime is None or not runtime.engine_id or runtime.error_code == ENGINE_GONE:
            return True
        return self._adapter.engine_id() == runtime.engine_id

    def _status(self, cancelled: bool) -> Run.Status | None:
        """None lets the recorded exit decide; a run whose end was asked for and has none obeyed."""
        if cancelled and settlement.recorded_exit(self._run) is None:
            return Run.Status.CANCELLED
        return None

    def _close(
        self,
        reason: str,
        message: str,
        status: Run.Status | None,
        *,
        code: str = "",
        begun: bool = False,
    ) -> None:
        failed = status in (None, Run.Status.FAILED)
        egress_endings.settle(self._run)
        with transaction.atomic():
            claims.lock(self._fence, self._run.number)
            store.close_early(
                self._run.number,
                reason=reason,
                detail=message,
                begun=begun,
                status=status,
                error_code=code if failed else "",
                error_message=message if failed else "",
            )
