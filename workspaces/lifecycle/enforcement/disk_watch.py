"""Stopping workspaces that take more disk than they may.

An engine has a quota for few kinds of storage only, and one workspace could take the disk from all
the others. So each build worker has its engine count, one worker at a time, those first that were
not looked at for the longest time.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Collection
from datetime import timedelta
from typing import Protocol

import structlog
from django.db.models.functions import Now

from controlplane.database.locks import try_advisory_lock
from controlplane.errors import Conflict, NotFound
from controlplane.work.stopping import StopEvent
from workspaces.lifecycle.teardown import DISK_LIMIT_EXCEEDED
from workspaces.lifecycle.transitions import TransitionRequest, request_transition
from workspaces.models import RuntimeInstance, Transition

EVERY = timedelta(minutes=1)
"""How often a workspace is looked at, unless there are too many of them for that."""
AT_ONCE = 20
SECONDS_EACH = 60.0
TIME_TO_TIDY = timedelta(minutes=15)
"""How long after its start a workspace that was stopped for its disk may have what it had."""

log = structlog.get_logger(__name__)


class DiskMeter(Protocol):
    """Can say how much disk workspaces take; methods raise only ``LaunchError``."""

    def engine_id(self) -> str:
        """Return how the engine names itself."""

    def disk_use(
        self,
        run_ids: Collection[uuid.UUID],
        *,
        image: str,
        seconds: float,
        stopped: threading.Event,
    ) -> dict[uuid.UUID, int]:
        """Return the bytes on disk of those runs that could be measured within ``seconds`` each."""


class DiskWatch:
    """Measures the running workspaces of one engine, and has stopped what exceeds ``max_bytes``.

    0: nothing is measured. ``image`` is what the engine counts with.
    """

    def __init__(self, meter: DiskMeter, *, instance_id: str, max_bytes: int, image: str) -> None:
        self._meter = meter
        self._instance_id = instance_id
        self._max_bytes = max_bytes
        self._image = image

    def look(self, stopped: StopEvent) -> None:
        """Look at all that are due, unless another worker is at it; for a minute, or one batch."""
        if not self._max_bytes:
            return
        engine_id = self._meter.engine_id()
        with try_advisory_lock(f"disks:{self._instance_id}:{engine_id}") as held:
            ends = time.monotonic() + EVERY.total_seconds()
            while held and not stopped.is_set() and self._look_at_some(engine_id, stopped):
                if time.monotonic() > ends:
                    return

    def _look_at_some(self, engine_id: str, stopped: threading.Event) -> bool:
        """Look at those that are due first; False when none is."""
        running = RuntimeInstance.objects.expected_to_run(engine_id=engine_id)
        due = running.due_for_disk_look(every=EVERY).select_related("attempt")
        found = {runtime.run_id: runtime for runtime in due[:AT_ONCE]}
        if not found:
            return False
        # Before they are measured: one that makes this fail is not the first one again.
        RuntimeInstance.objects.filter(pk__in=found).update(disk_looked_at=Now())
        sizes = self._meter.disk_use(
            list(found), image=self._image, seconds=SECONDS_EACH, stopped=stopped
        )
        for run_id, size in sizes.items():
            RuntimeInstance.objects.filter(pk=run_id).update(disk_bytes=size)
            if size > self._max_bytes and size > self._allowed_to_tidy(found[run_id]):
                self._stop(found[run_id], size)
        unmeasured = [str(run_id) for run_id in found if run_id not in sizes]
        if unmeasured and not stopped.is_set():
            log.warning("disks_not_measured", run_ids=unmeasured)
        return True

    def _allowed_to_tidy(self, runtime: RuntimeInstance) -> int:
        """Return what a workspace may have for a while because it has just been stopped for it.

        Otherwise nobody could ever enter it to remove something. Not more than twice the limit:
        each start would allow what the last one has added.
        """
        just_launched = RuntimeInstance.objects.filter(
            pk=runtime.pk, launched_at__gte=Now() - TIME_TO_TIDY
        )
        if not just_launched.exists():
            return 0
        before = RuntimeInstance.objects.filter(
            attempt__workspace_id=runtime.attempt.workspace_id, status__in=RuntimeInstance.TERMINAL
        )
        last = before.order_by("-finished_at").values_list("error_code", "disk_bytes").first()
        if last is None or last[0] != DISK_LIMIT_EXCEEDED:
            return 0
        return min(last[1] or 0, 2 * self._max_bytes)

    def _stop(self, runtime: RuntimeInstance, size: int) -> None:
        request = TransitionRequest(
            workspace_id=runtime.attempt.workspace_id,
            kind=Transition.Kind.STOP,
            owner_user_id=None,
            cause=Transition.Cause.DISK,
            requested_by="disk limit",
            detail=f"It used {size:,} bytes, and {self._max_bytes:,} are allowed.",
            attempt_id=runtime.attempt_id,
        )
        # Others may have stopped or deleted it meanwhile.
        with contextlib.suppress(Conflict, NotFound):
            request_transition(request)
