"""However much a workspace asks for, its record, the disk and the memory take a bounded part."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.record.egress_decisions import NOT_NAMED
from tests.workspaces.egress.decided.decided_rows import decision, losses, recorded, with_policy
from workspaces.egress.decided import journal as journals
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.sums import MAX_DIFFERENT

pytestmark = pytest.mark.django_db


def test_many_different_decisions_are_counted_and_the_loss_says_how_many(
    journal: Journal,
) -> None:
    attempt, run = with_policy()
    for number in range(MAX_DIFFERENT + 50):
        journal.add(decision(attempt.pk, f"h{number}.test", allowed=False))
    journal.add(decision(attempt.pk, "h0.test", allowed=False))
    journal.flush()
    told = recorded(run)
    assert len(told) == MAX_DIFFERENT + 1
    assert told[0]["connections"] == 2
    assert told[-1] == {
        "decision": "refused",
        "unnamed": True,
        "connections": 50,
        "bytesSent": 0,
        "bytesReceived": 0,
    }
    assert losses(run) == [NOT_NAMED]


def test_a_file_that_grows_is_written_anew_and_says_the_same(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "COMPACT_BYTES", 4096)
    attempt, run = with_policy()
    for number in range(1000):
        journal.add(decision(attempt.pk, f"h{number % 3}.test", sent=2))
        (file,) = (tmp_path / "egress-journal" / journal.id).glob(f"{attempt.pk}.*")
        assert file.stat().st_size < 8192
    journal.abandon()
    following = Journal(tmp_path / "egress-journal")
    following.recover()
    following.abandon()
    told = [(each["connections"], each["bytesSent"]) for each in recorded(run)]
    assert told == [(334, 668), (333, 666), (333, 666)]
