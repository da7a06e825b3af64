"""However much a workspace asks for, its record, the disk and the memory take a bounded part."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from runs.models import RunLoss
from runs.record.egress_decisions import DAMAGED, NOT_NAMED
from runs.record.verify import verify_run
from tests.workspaces.egress.conftest import Clock
from tests.workspaces.egress.decided.decided_rows import decision, losses, recorded, with_policy
from workspaces.egress.decided import sums, unstored
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.sums import AT_ONCE, HOLD_SECONDS, MAX_DIFFERENT, PER_HOUR

pytestmark = pytest.mark.django_db


def test_a_workspace_that_asks_for_new_names_for_hours_gets_so_many_an_hour_in_its_record(
    journal: Journal, clock: Clock
) -> None:
    attempt, run = with_policy()
    hours, step, each = 2, 30, MAX_DIFFERENT + 10
    number = itertools.count()
    for second in range(0, hours * 3600, step):
        for _ in range(each):
            journal.add(decision(attempt.pk, f"h{next(number)}.test", allowed=False))
        if second == 3600:
            journal.add(decision(attempt.pk, "found.test", allowed=False, finding=True))
            journal.add(decision(attempt.pk, "reached.test"))
        journal.flush()
        clock.now += step
    journal.flush(all_due=True)
    told = recorded(run)
    named = [one for one in told if one["decision"] == "refused" and "unnamed" not in one]
    unnamed = [one for one in told if "unnamed" in one]
    assert AT_ONCE <= len(named) <= AT_ONCE + hours * PER_HOUR
    assert len(unnamed) <= hours * 3600 / HOLD_SECONDS + AT_ONCE / MAX_DIFFERENT + 1
    # Not one is missing in the sum, and the record says how many are only counted.
    refused = sum(one["connections"] for one in told if one["decision"] == "refused")
    assert refused == next(number)
    assert set(losses(run)) == {NOT_NAMED}
    counted = RunLoss.objects.filter(run_number=run.number).values_list("count", flat=True)
    assert sum(count or 0 for count in counted) == sum(one["connections"] for one in unnamed)
    others = [(one["decision"], one["host"]) for one in told if one["decision"] != "refused"]
    assert sorted(others) == [("allowed", "reached.test"), ("finding", "found.test")]
    assert verify_run(run).ok


def test_a_workspace_that_reaches_the_same_hosts_all_day_has_them_named_less_often(
    journal: Journal, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "AT_ONCE", 20)
    attempt, run = with_policy()
    for _ in range(600):
        for name in ("a", "b", "c", "d", "e"):
            journal.add(decision(attempt.pk, f"{name}.test"))
        journal.flush()
        clock.now += 1
    journal.flush(all_due=True)
    told = recorded(run)
    assert len(told) <= 20 + 600 * PER_HOUR / 3600
    assert not any("unnamed" in one for one in told)
    assert sum(one["connections"] for one in told) == 600 * 5
    assert losses(run) == []


def test_what_is_held_is_stored_when_the_record_is_about_to_end(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(sums, "AT_ONCE", 1)
    attempt, run = with_policy(journal.id)
    for name in ("a.test", "b.test"):
        journal.add(decision(attempt.pk, name))
    journal.flush()
    assert recorded(run) == []
    journal.close(attempt.pk)
    assert journal.settle(attempt.pk)
    assert [one.get("host") for one in recorded(run)] == ["a.test", None]
    assert sum(one["connections"] for one in recorded(run)) == 2


def test_as_many_as_there_is_room_for_are_named_at_once_and_more_are_held_for_a_minute(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(sums, "AT_ONCE", 2)
    monkeypatch.setattr(sums, "PER_HOUR", 0)
    attempt, run = with_policy()
    for name in ("a.test", "b.test"):
        journal.add(decision(attempt.pk, name))
    journal.flush()
    assert len(recorded(run)) == 2
    for name in ("c.test", "d.test"):
        journal.add(decision(attempt.pk, name))
        clock.now += 30
        journal.flush()
        assert len(recorded(run)) == (2 if name == "c.test" else 3)
    assert recorded(run)[2]["connections"] == 2


def test_that_something_is_missing_is_told_at_once_with_what_was_held(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "AT_ONCE", 1)
    attempt, run = with_policy()
    for name in ("a.test", "b.test"):
        journal.add(decision(attempt.pk, name))
    journal.flush()
    assert recorded(run) == []
    journal.follow("gone", attempt.pk)
    journal.flush()
    assert losses(run) == [NOT_NAMED, DAMAGED]
    assert len(recorded(run)) == 2


def test_what_is_only_counted_is_stored_though_as_much_is_named(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "MAX_DIFFERENT", 1)
    attempt, run = with_policy()
    for name in ("a.test", "b.test"):
        journal.add(decision(attempt.pk, name))
    journal.flush()
    assert [one.get("host") for one in recorded(run)] == ["a.test", None]


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
    monkeypatch.setattr(unstored, "COMPACT_BYTES", 4096)
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
