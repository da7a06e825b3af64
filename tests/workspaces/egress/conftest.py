"""What tests of the egress proxy share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from workspaces.egress import allowance
from workspaces.egress.decided import journal as journals
from workspaces.egress.decided import sums, unstored
from workspaces.egress.decided.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The journal of a proxy, whose passes a test ends itself."""
    journal = Journal(tmp_path / "egress-journal")
    yield journal
    journal.abandon()


@dataclass
class Clock:
    """Time as a test has it pass."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return time.time_ns()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which room fills, passes are held, and what has failed is tried again."""
    clock = Clock()
    for module in (allowance, journals, sums, unstored):
        monkeypatch.setattr(module, "time", clock)
    return clock
