"""Journals of workspaces that are closed, have ended or were served by others."""

from __future__ import annotations

import pytest

from runs.models import RunLoss
from runs.record import egress_endings
from runs.record.egress_decisions import DAMAGED
from tests.workspaces.egress.conftest import Clock
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    recorded,
    with_policy,
)
from workspaces.egress.decided import sums
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.unstored import RecordEnded

pytestmark = pytest.mark.django_db


def test_of_a_closed_workspace_nothing_begins_and_what_is_open_tells_how_it_ends(
    journal: Journal,
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    journal.close(attempt.pk)
    with pytest.raises(RecordEnded):
        journal.add(decision(attempt.pk))
    journal.add(decision(attempt.pk, connections=0, sent=7))
    journal.add(decision(attempt.pk, "b.test", allowed=False))
    journal.flush()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]
    assert recorded(run)[0]["bytesSent"] == 7


def test_behind_the_end_of_a_record_what_ends_late_is_neither_an_error_nor_kept(
    journal: Journal,
) -> None:
    attempt, run = with_policy(journal.id)
    egress_endings.settle(run)
    journal.close(attempt.pk)
    assert journal.settle(attempt.pk)
    journal.flush()
    journal.add(decision(attempt.pk, connections=0, sent=7))
    journal.follow("gone", attempt.pk)
    assert journal._kept == {}
    with pytest.raises(RecordEnded):
        journal.add(decision(attempt.pk))


def test_a_workspace_that_is_closed_is_remembered_until_it_is_settled(journal: Journal) -> None:
    attempt, _ = with_policy(journal.id)
    journal.close(attempt.pk)
    journal.flush()
    with pytest.raises(RecordEnded):
        journal.add(decision(attempt.pk))
    assert list(journal._kept) == [attempt.pk]


def test_a_workspace_whose_decisions_are_stored_is_forgotten_once_its_room_is_full(
    journal: Journal, clock: Clock
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    journal.flush()
    journal.flush()
    assert list(journal._kept) == [attempt.pk], "it would be given more room than it has"
    clock.now += 3600 / sums.PER_HOUR
    journal.flush()
    assert journal._kept == {}
    journal.add(decision(attempt.pk, "b.test"))
    journal.flush()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]


def test_a_network_that_this_proxy_or_nobody_served_before_lacks_nothing(
    journal: Journal,
) -> None:
    attempt, run = with_policy()
    journal.follow("", attempt.pk)
    journal.follow(journal.id, attempt.pk)
    journal.flush()
    assert head_of(run).loss_count == 0
    journal.add(decision(attempt.pk))
    journal.flush()
    journal.follow("gone", attempt.pk)
    journal.flush()
    assert RunLoss.objects.get(run_number=run.number).reason == DAMAGED
