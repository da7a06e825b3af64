"""What was decided in one pass: equal decisions together, and not too many different ones.

A workspace has room for so many in its record at once, and so many an hour. While there is less
than it needs passes are longer, so that more of them are equal; what has no room then is counted.
Each kind has room of its own: no flood of refusals hides what was allowed, or a finding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any
from uuid import UUID

from workspaces.egress.allowance import Allowance
from workspaces.egress.decisions import Decision, Summed

MAX_DIFFERENT = 200
"""So many different decisions of a kind are named of one workspace and pass."""
AT_ONCE = 2000
PER_HOUR = 1200
"""So many decisions of a kind are named of one workspace: at once, and then each hour."""
HOLD_SECONDS = 60.0
"""How long a pass is at the most, where there is no room for all that it names."""
_KINDS = ("allowed", "refused", "finding")

_TOLD = {each.name for each in fields(Decision)} - {"attempt_id"}


@dataclass(slots=True)
class Line:
    """Decisions that are equal, or too many to be named: then there is no ``decision``."""

    decision: Decision | None
    allowed: bool
    total: Summed
    decided_us: int
    """When the first of them was decided, by the proxy's clock. Nothing hangs on it."""
    finding: bool = False

    @property
    def kind(self) -> str:
        """One of ``_KINDS``, as the record says it."""
        return "finding" if self.finding else "allowed" if self.allowed else "refused"

    def to_json(self) -> dict[str, Any]:
        """Return it as the journal has it."""
        told = {
            "at": self.decided_us,
            "sum": asdict(self.total),
            "allowed": self.allowed,
            "finding": self.finding,
        }
        if self.decision is None:
            return told
        decision = {name: getattr(self.decision, name) for name in _TOLD}
        return told | {"decision": decision}

    @classmethod
    def from_json(cls, attempt_id: UUID, told: Any) -> Line:
        """Read what the journal has; raises ``KeyError``, ``TypeError`` and ``ValueError``."""
        decision = None
        if "decision" in told:
            members = told["decision"]
            credentials = tuple(members["credentials"])
            decision = Decision(attempt_id, **{**members, "credentials": credentials})
        total, at = Summed(**told["sum"]), int(told["at"])
        finding = bool(told.get("finding", decision is not None and decision.finding))
        return cls(decision, bool(told["allowed"]), total, at, finding)

    def to_meta(self) -> dict[str, Any]:
        """Return what the event in the record says."""
        counts = {
            "connections": self.total.connections,
            "bytesSent": self.total.sent,
            "bytesReceived": self.total.received,
        }
        if self.decision is None:
            return {"decision": self.kind, "unnamed": True, **counts}
        told = self.decision
        meta: dict[str, Any] = {
            "decision": self.kind,
            "protocol": told.protocol,
            "host": told.host,
            "address": told.address,
            "port": told.port,
            "rule": told.rule,
            "reason": told.reason,
            "method": told.method,
            "credentials": list(told.credentials),
            **counts,
        }
        return {name: value for name, value in meta.items() if value not in ("", [])}


class Room:
    """How many decisions of one workspace may still be named in its record."""

    def __init__(self) -> None:
        self._of = {kind: Allowance(AT_ONCE, PER_HOUR / 3600) for kind in _KINDS}

    @property
    def is_full(self) -> bool:
        """Whether nothing would be lost if it were forgotten."""
        return all(each.is_full for each in self._of.values())

    def has(self, named: Counter[str]) -> bool:
        """Tell whether there is room for so many of each kind."""
        return all(self._of[kind].room >= count for kind, count in named.items())

    def take(self, kind: str) -> bool:
        """Take the room of one; False when there is none."""
        return self._of[kind].take()


class Sums:
    """The decisions of one workspace and pass."""

    def __init__(self) -> None:
        self._named: dict[tuple[object, ...], Line] = {}
        self._unnamed: dict[str, Line] = {}
        self.named: Counter[str] = Counter()
        """How many of each kind are named."""
        self.began = time.monotonic()
        """When the first one came."""

    def __len__(self) -> int:
        return len(self._named) + len(self._unnamed)

    def __iter__(self) -> Iterator[Line]:
        yield from self._named.values()
        yield from self._unnamed.values()

    def add(self, line: Line) -> None:
        """Add decisions to those that are equal."""
        decision = line.decision
        if not len(self):
            self.began = time.monotonic()
        if decision is None:
            self._count(line)
        elif (known := self._named.get(decision.key)) is not None:
            known.total.include(line.total)
        elif self.named[line.kind] >= MAX_DIFFERENT:
            self._count(line)
        else:
            self._named[decision.key] = replace(line, total=replace(line.total))
            self.named[line.kind] += 1

    def within(self, room: Room) -> list[Line]:
        """Return what is stored of them: those that ``room`` has no place for are only counted."""
        fitting = []
        for line in self._named.values():
            if room.take(line.kind):
                fitting.append(line)
            else:
                self._count(line)
        return [*fitting, *self._unnamed.values()]

    def _count(self, line: Line) -> None:
        empty = replace(line, decision=None, total=Summed())
        self._unnamed.setdefault(line.kind, empty).total.include(line.total)


def line_of(decision: Decision) -> Line:
    """Return what is written of one decision."""
    total = Summed(decision.connections, decision.sent, decision.received)
    now_us = time.time_ns() // 1000
    return Line(decision, decision.allowed, total, now_us, decision.finding)
