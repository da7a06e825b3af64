"""Finding what nobody is at: runs without a worker, and spools whose last word was lost."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db.models import Exists, OuterRef, QuerySet, Subquery
from django.db.models.functions import Now

from runs.agent.record.frames import FrameError
from runs.models import Run, RunHead
from runs.recording import claims
from runs.recording.tail_channel import NO_SUCH_RUN, NOT_OURS, TailChannel, TailEndedError
from workspaces.models import RuntimeInstance
from workspaces.runtimes.base import LaunchError, RuntimeAdapter

log = structlog.get_logger(__name__)

CALL_SECONDS = 20.0
LEFTOVER_AGE = timedelta(days=1)
"""Workspaces are looked at for this long after a run of theirs has ended: longer than workers, an
engine or a paused container are away."""
COMMITTED_AFTER = timedelta(seconds=10)
"""An end counts once it is this old: two of one workspace need not be committed in their order."""


def claimable_runs(
    *,
    overdue: timedelta,
    limit: int,
    modes: Collection[Run.Mode] = tuple(Run.Mode),
    engine: str = "",
) -> list[uuid.UUID]:
    """Return up to ``limit`` runs of ``modes`` that nobody is at, longest-waiting first.

    Leased and unclaimed runs are two questions, each on its own partial index.
    """
    found: list[uuid.UUID] = []
    for runs in (claims.expired(), claims.unclaimed(overdue=overdue)):
        if len(found) < limit:
            rows = (
                claims.of_engine(runs, engine).filter(mode__in=modes).values_list("pk", flat=True)
            )
            found += list(rows[: limit - len(found)])
    return found


class Leftovers:
    """Has workspaces remove spools of records that have ended; for one worker's rounds.

    A worker that dies between its last commit and its acknowledgement leaves such a spool, and so
    does a record that was ended without its agent: what still runs of that one is stopped, because
    nobody records it any more.

    Each question is a process in the workspace. One where nothing is left is asked again only when
    a further run of it has ended; a worker that starts asks them all.
    """

    def __init__(
        self, adapter: RuntimeAdapter, *, engine: str = "", committed: timedelta = COMMITTED_AFTER
    ) -> None:
        self._adapter = adapter
        self._engine = engine
        self._committed = committed
        self._clean_after: dict[uuid.UUID, datetime] = {}

    def acknowledge(self) -> int:
        """Ask the workspaces of which that is not known yet; return how many spools went."""
        latest = dict(self._latest_ends())
        clean = self._clean_after
        self._clean_after = {run: end for run, end in clean.items() if latest.get(run) == end}
        removed = 0
        for boot_run_id in latest.keys() - self._clean_after.keys():
            gone, left = _acknowledge_in(self._adapter, boot_run_id)
            removed += gone
            if left == 0:
                self._clean_after[boot_run_id] = latest[boot_run_id]
        return removed

    def _latest_ends(self) -> QuerySet[RuntimeInstance, tuple[uuid.UUID, datetime]]:
        ended = Run.objects.filter(
            attempt_id=OuterRef("attempt_id"),
            recorded=True,
            mode__in=[Run.Mode.ONE_SHOT, Run.Mode.INTERACTIVE],
            finished_at__gt=Now() - LEFTOVER_AGE,
            finished_at__lte=Now() - self._committed,
        ).order_by("-finished_at")
        return (
            RuntimeInstance.objects.of_engine(self._engine)
            .filter(status=RuntimeInstance.Status.RUNNING)
            .annotate(latest_end=Subquery(ended.values("finished_at")[:1]))
            .filter(latest_end__isnull=False)
            .values_list("run_id", "latest_end")
        )


def _acknowledge_in(adapter: RuntimeAdapter, boot_run_id: uuid.UUID) -> tuple[int, int]:
    """Return how many spools a workspace removed, and how many things are left to do there."""
    try:
        answer = adapter.call_agent(boot_run_id, ["runs"], timeout=CALL_SECONDS)
        if answer.exit_code != 0:
            return 0, 1
        last = {
            uuid.UUID(spool["runId"]): _sequence(spool["lastSequence"]) if spool["sealed"] else None
            for spool in json.loads(answer.stdout)
        }
    except (LaunchError, *NOT_OURS) as exc:
        # One workspace that cannot be asked, or answers nonsense, is not the end of the round.
        log.info("leftovers_not_seen", boot_run_id=str(boot_run_id), reason=type(exc).__name__)
        return 0, 1
    sealed = RunHead.objects.filter(run_number=OuterRef("number"), sealed_at__isnull=False)
    ended = (
        Run.objects.filter(pk__in=last, attempt__run_id=boot_run_id, status__in=Run.TERMINAL)
        .exclude(mode=Run.Mode.BOOT)
        .values_list("pk", Exists(sealed))
    )
    removed, told = 0, list(ended)
    for run_id in [run_id for run_id, record_is_over in told if record_is_over]:
        sequence = last[run_id]
        if sequence is None:
            _stop(adapter, boot_run_id, run_id)
        else:
            removed += _acknowledge(adapter, boot_run_id, run_id, sequence)
    return removed, len(told) - removed


def _sequence(told: Any) -> int:
    """Return the number of an event as an acknowledgement carries it; raises as ``NOT_OURS``."""
    sequence = int(told)
    if not 0 <= sequence < 2**64:
        raise ValueError("no event has such a number")
    return sequence


def _stop(adapter: RuntimeAdapter, boot_run_id: uuid.UUID, run_id: uuid.UUID) -> None:
    """Stop what runs of a run that has ended; its spool is removed in a later round."""
    try:
        answer = adapter.call_agent(
            boot_run_id, ["stop", str(run_id), "--reason", "stop"], timeout=CALL_SECONDS
        )
        if answer.exit_code == NO_SUCH_RUN:
            # Nobody is there to be stopped: its writer is dead, and whoever reads a spool seals it.
            tail = TailChannel.open(adapter, boot_run_id, run_id, 1)
            tail.close()
            if tail.hello.sealed:
                log.warning("unrecorded_spool_sealed", run_id=str(run_id))
            else:
                reason = "its disk is full, or somebody writes it"
                log.info("unrecorded_spool_not_sealed", run_id=str(run_id), reason=reason)
        else:
            log.warning("unrecorded_run_stopped", run_id=str(run_id))
    except LaunchError as exc:
        log.info("unrecorded_run_not_stopped", run_id=str(run_id), code=exc.code)
    except (TailEndedError, FrameError) as exc:
        log.info("unrecorded_spool_not_sealed", run_id=str(run_id), reason=str(exc)[:500])


def _acknowledge(
    adapter: RuntimeAdapter, boot_run_id: uuid.UUID, run_id: uuid.UUID, last: int
) -> bool:
    try:
        tail = TailChannel.open(adapter, boot_run_id, run_id, last + 1)
    except (LaunchError, TailEndedError, FrameError):
        return False
    try:
        tail.acknowledge(last)
        tail.wait_end(CALL_SECONDS)
    except LaunchError:
        return False
    finally:
        tail.close()
    log.info("leftover_acknowledged", run_id=str(run_id))
    return True
