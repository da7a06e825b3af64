"""What was decided in one pass: equal decisions together, and not too many different ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any
from uuid import UUID

from workspaces.egress.decisions import Decision, Summed

MAX_DIFFERENT = 200
"""So many different decisions of one workspace and pass are named; the rest is counted."""

_TOLD = {each.name for each in fields(Decision)} - {"attempt_id"}


@dataclass(slots=True)
class Line:
    """Decisions that are equal, or too many to be named: then there is no ``decision``."""

    decision: Decision | None
    allowed: bool
    total: Summed
    decided_us: int
    """When the first of them was decided, by the proxy's clock. Nothing hangs on it."""

    def to_json(self) -> dict[str, Any]:
        """Return it as the journal has it."""
        told = {"at": self.decided_us, "sum": asdict(self.total), "allowed": self.allowed}
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
        return cls(decision, bool(told["allowed"]), Summed(**told["sum"]), int(told["at"]))

    def to_meta(self) -> dict[str, Any]:
        """Return what the event in the record says."""
        counts = {
            "connections": self.total.connections,
            "bytesSent": self.total.sent,
            "bytesReceived": self.total.received,
        }
        if self.decision is None:
            return {"decision": _word(self.allowed, False), "unnamed": True, **counts}
        told = self.decision
        meta: dict[str, Any] = {
            "decision": _word(told.allowed, told.finding),
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


class Sums:
    """The decisions of one workspace and pass."""

    def __init__(self) -> None:
        self._named: dict[tuple[object, ...], Line] = {}
        self._unnamed: dict[bool, Line] = {}

    def __len__(self) -> int:
        return len(self._named) + len(self._unnamed)

    def __iter__(self) -> Iterator[Line]:
        yield from self._named.values()
        yield from self._unnamed.values()

    def add(self, line: Line) -> None:
        """Add decisions to those that are equal."""
        decision = line.decision
        known = None if decision is None else self._named.get(decision.key)
        if known is None and (decision is None or len(self._named) >= MAX_DIFFERENT):
            empty = Line(None, line.allowed, Summed(), line.decided_us)
            known = self._unnamed.setdefault(line.allowed, empty)
        if known is None:
            assert decision is not None
            self._named[decision.key] = replace(line, total=replace(line.total))
        else:
            known.total.include(line.total)


def line_of(decision: Decision) -> Line:
    """Return what is written of one decision."""
    total = Summed(decision.connections, decision.sent, decision.received)
    return Line(decision, decision.allowed, total, time.time_ns() // 1000)


def _word(allowed: bool, finding: bool) -> str:
    if finding:
        return "finding"
    return "allowed" if allowed else "refused"
