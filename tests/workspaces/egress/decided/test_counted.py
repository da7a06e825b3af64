"""Operators see how many decisions are in records, and how many are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.metrics import counting
from controlplane.metrics.families import EGRESS_DECISIONS
from runs.record import store
from tests.workspaces.egress.decided.decided_rows import decision, with_policy
from workspaces.egress.decided.journal import Journal

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
    journal.flush()
    assert counts() == {"lost": 1}
