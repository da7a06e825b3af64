"""Decisions as events of the workspace: what was reached and what was refused.

Equal decisions of one second are one event with a count. A workspace that asks for a new host with
each packet gets events at a bounded rate, too: what exceeds it is counted, and told as a count.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

import structlog
from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    close_old_connections,
    connections,
    transaction,
)

from workspaces.egress.proposals import Proposed, note_refusals
from workspaces.models import Attempt, WorkspaceEvent
from workspaces.services import Event, record_events

FLUSH_SECONDS = 1.0
BURST = 100
PER_SECOND = 0.2
MAX_PENDING = 200
Kind = WorkspaceEvent.Type

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """One connection or name that was allowed or refused.

    A connection that is allowed is told twice: when it begins, with one connection and no bytes,
    and when it ends, with no connection and its bytes.
    """

    attempt_id: UUID
    allowed: bool
    protocol: str
    host: str
    address: str
    port: int
    rule: str
    reason: str
    connections: int
    sent: int = 0
    received: int = 0
    finding: bool = False
    """A refusal of what would have taken something out."""
    another_rule: bool = False
    """A refusal that a rule for the host and port would undo."""
    method: str = ""
    """Of an HTTP request."""
    credentials: tuple[str, ...] = ()
    """The ids of the accounts whose secrets may be put in."""

    @property
    def key(self) -> tuple[object, ...]:
        """What decisions have in common that are told together."""
        told = (self.allowed, self.protocol, self.host, self.address, self.port)
        return (*told, self.rule, self.reason, self.finding, self.method, self.credentials)

    @property
    def kind(self) -> Kind:
        """What kind of event it is."""
        if self.finding:
            return Kind.EGRESS_FINDING
        return Kind.EGRESS_ALLOWED if self.allowed else Kind.EGRESS_REFUSED


@dataclass(slots=True)
class Summed:
    """What equal decisions come to."""

    connections: int = 0
    sent: int = 0
    received: int = 0

    def include(self, other: Decision | Summed) -> None:
        """Add what another decision, or several, come to."""
        self.connections += other.connections
        self.sent += other.sent
        self.received += other.received


_Sums: TypeAlias = dict[tuple[object, ...], tuple[Decision, Summed]]


class _Waiting:
    """What is still to be told of one attempt, and how much may be.

    Findings have room of their own, so that no flood of other refusals hides them.
    """

    def __init__(self) -> None:
        self.sums: dict[bool, _Sums] = {True: {}, False: {}}
        self.beyond: dict[bool, Summed] = {}
        self.proposed: Counter[Proposed] = Counter()
        self.room = {True: float(BURST), False: float(BURST)}
        self.filled = time.monotonic()

    def add(self, decision: Decision) -> None:
        if decision.another_rule:
            place = (decision.host, None if decision.protocol == "dns" else decision.port)
            if place in self.proposed or len(self.proposed) < MAX_PENDING:
                self.proposed[place] += decision.connections
        sums = self.sums[decision.finding]
        if decision.key not in sums and len(sums) >= MAX_PENDING:
            self.beyond.setdefault(decision.allowed, Summed()).include(decision)
            return
        _, total = sums.setdefault(decision.key, (decision, Summed()))
        total.include(decision)

    def taken(self) -> list[Event]:
        """Return the events that may be written now, and forget them."""
        now = time.monotonic()
        for finding, room in self.room.items():
            self.room[finding] = min(BURST, room + (now - self.filled) * PER_SECOND)
        self.filled = now
        events = []
        for finding, sums in self.sums.items():
            for decision, total in sums.values():
                if self.room[finding] < 2:  # one is kept for what exceeds
                    self.beyond.setdefault(decision.allowed, Summed()).include(
                        _with(decision, total)
                    )
                    continue
                self.room[finding] -= 1
                events.append(_event(decision, total))
            sums.clear()
        for allowed in list(self.beyond):
            if self.room[False] >= 1:
                self.room[False] -= 1
                events.append(_count(allowed, self.beyond.pop(allowed)))
        return events

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost if it were forgotten."""
        waits = any(self.sums.values()) or self.beyond or self.proposed
        return not waits and min(self.room.values()) >= BURST - 1


class DecisionLog:
    """Writes decisions from a thread of its own; :meth:`add` never waits.

    While the database is away decisions wait, in bounded memory.
    """

    def __init__(self) -> None:
        self._waiting: dict[UUID, _Waiting] = {}
        self._unwritten: dict[UUID, list[Event]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="egress decisions")

    def __enter__(self) -> DecisionLog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def add(self, decision: Decision) -> None:
        """Have a decision written."""
        with self._lock:
            self._waiting.setdefault(decision.attempt_id, _Waiting()).add(decision)

    def flush(self) -> None:
        """Write what waits; what cannot be written now is written the next time."""
        with self._lock:
            idle = [who for who, waiting in self._waiting.items() if waiting.is_idle]
            for who in idle:
                del self._waiting[who]
            for who, waiting in self._waiting.items():
                # Until these are written, more of it is summed up in bounded memory.
                if who not in self._unwritten and (events := waiting.taken()):
                    self._unwritten[who] = events
        for who, events in list(self._unwritten.items()):
            if self._write(who, events):
                del self._unwritten[who]
        self._propose()

    def _propose(self) -> None:
        with self._lock:
            proposed = {who: each.proposed for who, each in self._waiting.items() if each.proposed}
            for who in proposed:
                self._waiting[who].proposed = Counter()
        for who, places in proposed.items():
            try:
                note_refusals(who, places)
            except (DatabaseError, ValueError) as error:
                # It is asked for again as long as it is wanted.
                log.warning("egress_proposals_lost", reason=type(error).__name__)

    def _write(self, attempt_id: UUID, events: list[Event]) -> bool:
        try:
            attempt = Attempt.objects.filter(pk=attempt_id).first()
            if attempt is not None:  # its workspace may have been erased
                with transaction.atomic():
                    record_events(attempt, events)
        except (OperationalError, InterfaceError) as error:
            log.warning("egress_decisions_wait", reason=type(error).__name__)
            close_old_connections()
            return False
        except (DatabaseError, ValueError):
            # Erased meanwhile, or a fault of ours: the next time would not be better.
            log.exception("egress_decisions_lost", attempt_id=str(attempt_id), events=len(events))
        return True

    def _run(self) -> None:
        try:
            while not self._stopped.wait(FLUSH_SECONDS):
                close_old_connections()
                self._guarded_flush()
            self._guarded_flush()
        finally:
            connections.close_all()

    def _guarded_flush(self) -> None:
        try:
            self.flush()
        except Exception:
            log.exception("egress_decisions_not_written")


def _with(decision: Decision, total: Summed) -> Decision:
    return replace(
        decision, connections=total.connections, sent=total.sent, received=total.received
    )


def _event(decision: Decision, total: Summed) -> Event:
    place = f"{decision.host or decision.address} port {decision.port}"
    counted = f"{total.connections} connections" if total.connections != 1 else "1 connection"
    if not decision.allowed:
        name = f"The name {decision.host}" if decision.host else "A query for a name"
        what = name if decision.protocol == "dns" else place
        message = f"Refused: {what}. {decision.reason}"
    elif total.connections:
        message = f"Reached {place}, allowed by {decision.rule}: {counted}."
    else:
        message = f"Closed {place}: {total.sent} bytes sent, {total.received} received."
    return Event(
        decision.kind,
        message,
        {
            "protocol": decision.protocol,
            "host": decision.host,
            "address": decision.address,
            "port": decision.port,
            "rule": decision.rule,
            "reason": decision.reason,
            **_counts(total),
        },
    )


def _count(allowed: bool, total: Summed) -> Event:
    kind = Kind.EGRESS_ALLOWED if allowed else Kind.EGRESS_REFUSED
    what = "allowed" if allowed else "refused"
    message = f"{total.connections} more were {what}; there were too many to name each."
    return Event(kind, message, {"unnamed": True, **_counts(total)})


def _counts(total: Summed) -> dict[str, int]:
    return {
        "connections": total.connections,
        "bytesSent": total.sent,
        "bytesReceived": total.received,
    }
