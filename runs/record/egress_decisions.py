"""Decisions of the egress proxy in the records of boot runs, each once."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from runs.agent.record.frames import Confidence, Event, Kind, Method
from runs.models import Run, RunHead
from runs.record.ingest import tables
from runs.record.ingest.derived import Loss
from runs.record.store import append_own
from workspaces.egress.decided.keeping import Pass
from workspaces.models import EgressJournal

SOURCE = "egress"
LOCK_MS = 2000
"""How long a proxy waits for a record that somebody else writes to: others wait as well."""
MOMENT_MS = 100
"""How long it does so at first."""

NOT_NAMED = "egress: these decisions are only counted; there were too many different ones"
DAMAGED = "egress: the proxy could not write or read all of its journal"
UPGRADED = "Decisions before the record was begun by this release are not in it."


class EgressDecisions:
    """Implements ``workspaces.egress.decided.keeping.Records`` with the records of boot runs."""

    def store(self, decided: Pass, *, patient: bool) -> bool:
        """Store a pass unless it is stored already; False: the record has ended, or is not there.

        Raises database errors: then it is to be tried again, however often. A record that somebody
        else writes to is waited for a moment only, or two seconds where it is ``patient``.
        """
        with transaction.atomic():
            _wait_at_most(LOCK_MS if patient else MOMENT_MS)
            run = _boot_run(decided.attempt_id)
            if run is None:
                return False
            head = RunHead.objects.select_for_update().filter(pk=run.number).first()
            if head is None:
                return False
            of_it = EgressJournal.objects.filter(
                attempt_id=decided.attempt_id, journal=decided.journal
            )
            last = of_it.values_list("last_pass", flat=True).first()
            if last is not None and last >= decided.number:
                return True
            if head.sealed_at is not None:
                return False
            _append(head, decided)
            EgressJournal.objects.update_or_create(
                attempt_id=decided.attempt_id,
                journal=decided.journal,
                defaults={"last_pass": decided.number},
            )
        return True

    def is_open(self, attempt_id: UUID) -> bool:
        """Whether decisions can still be stored; waits for whoever is about to end the record.

        Not for long: raises a database error then.
        """
        run = _boot_run(attempt_id)
        if run is None:
            return False
        with transaction.atomic():
            _wait_at_most(LOCK_MS)
            head = RunHead.objects.select_for_update(of=["self"]).filter(pk=run.number).first()
            return head is not None and head.sealed_at is None


def begin(run: Run) -> None:
    """Have the record of a new boot run say that decisions are in it, if there is a policy.

    To be called in the transaction that creates the run.
    """
    assert run.attempt is not None
    network = run.attempt.spec.get("runtime", {}).get("network", {})
    if network.get("egress") is None:
        return
    with transaction.atomic():
        head = RunHead.objects.select_for_update().get(pk=run.number)
        _tell(head, [(Kind.COVERAGE_CHANGED, time.time_ns() // 1000, _coverage(head, "on"))])


def _wait_at_most(milliseconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = {milliseconds}")


def _boot_run(attempt_id: UUID) -> Run | None:
    return Run.objects.filter(attempt_id=attempt_id, mode=Run.Mode.BOOT).first()


def _append(head: RunHead, decided: Pass) -> None:
    events: list[tuple[int, int, dict[str, Any]]] = []
    if SOURCE not in head.coverage:
        # The record was begun by a release that stored none.
        now = time.time_ns() // 1000
        events.append((Kind.COVERAGE_CHANGED, now, _coverage(head, "limited", UPGRADED)))
    events += [(Kind.EGRESS_DECIDED, line.decided_us, line.to_meta()) for line in decided.lines]
    first = head.last_sequence + 1 + len(events) - len(decided.lines)
    losses = [
        Loss(
            "dropped_event",
            "marker",
            first + place,
            first + place,
            count=line.total.connections,
            reason=NOT_NAMED,
        )
        for place, line in enumerate(decided.lines)
        if line.decision is None
    ]
    if decided.missing:
        losses.append(Loss("dropped_event", "gap", head.last_sequence + 1, reason=DAMAGED))
    tables.add_losses(head, losses)
    _tell(head, events)


def _coverage(head: RunHead, state: str, reason: str = "") -> dict[str, Any]:
    told = {"state": state, "method": "proxy"} | ({"reason": reason} if reason else {})
    head.coverage = {**head.coverage, SOURCE: told}
    return {"source": SOURCE, **told}


def _tell(head: RunHead, events: list[tuple[int, int, dict[str, Any]]]) -> None:
    append_own(
        head,
        [
            Event(
                number,
                wall_us,
                time.monotonic_ns(),
                kind,
                Method.PROXY,
                Confidence.OBSERVED,
                0,
                0,
                0,
                json.dumps(told, separators=(",", ":")).encode(),
                b"",
            )
            for number, (kind, wall_us, told) in enumerate(events, 1)
        ],
    )
