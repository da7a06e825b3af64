"""Operators see how many decisions are in records, and how many are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from controlplane.metrics import counting
from controlplane.metrics.families import EGRESS_DECISIONS
from runs.record import store
from tests.workspaces.egress.decided.decided_rows import decision, with_policy
from workspaces.egress.decided.journal import Journal
from workspaces.models import Attempt

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_counted() -> Iterator[None]:
    counting.take()
    yield
    counting.take()


def counts() -> dict[str, float]:
    told = counting.pending().items()
    return {labels[0]: value for (name, labels, _), value in told if name == EGRESS_DECISIONS.name}


def test_decisions_that_are_stored_are_counted_once_each(journal: Journal) -> None:
    attempt, _ = with_policy()
    journal.add(decision(attempt.pk))
    journal.add(decision(attempt.pk))
    journal.add(decision(attempt.pk, connections=0, sent=5))
    journal.add(decision(attempt.pk, "b.test", allowed=False))
    journal.flush()
    journal.flush()
    assert counts() == {"stored": 3}


def test_decisions_that_come_behind_the_end_of_a_record_are_counted_as_lost(
    journal: Journal,
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    store.close_early(run.number, reason="container-gone", detail="removed")
    with capture_logs() as told:
        journal.flush()
    assert counts() == {"lost": 1}
    assert [(each["event"], each["decisions"]) for each in of_egress(told)] == [
        ("egress_decisions_after_the_end", 1)
    ]


def test_decisions_that_are_stored_are_nothing_to_tell_of(journal: Journal) -> None:
    attempt, _ = with_policy()
    journal.add(decision(attempt.pk))
    with capture_logs() as told:
        journal.flush()
    assert of_egress(told) == []


def of_egress(told: list[EventDict]) -> list[EventDict]:
    """Return what was logged of it; other threads log as well."""
    return [each for each in told if each["event"].startswith("egress")]


def test_decisions_of_what_was_erased_are_counted_as_lost(journal: Journal) -> None:
    journal.add(decision(Attempt().pk))
    journal.flush()
    assert counts() == {"lost": 1}


def test_what_a_journal_lacks_is_counted_as_one_that_is_lost(journal: Journal) -> None:
    attempt, _ = with_policy()
    journal.add(decision(attempt.pk))
    journal.follow("gone", attempt.pk)
    journal.flush()
    assert counts() == {"stored": 1, "lost": 1}
