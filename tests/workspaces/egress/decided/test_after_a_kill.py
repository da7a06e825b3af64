"""A record does not end before the decisions of a killed proxy are in it, or it says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.record import egress_decisions, egress_endings
from runs.record.egress_decisions import DAMAGED
from tests.support.locked_rows import locked
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    losses,
    network_of,
    recorded,
    with_policy,
)
from workspaces.egress import known_networks
from workspaces.egress.decided import journal as journals
from workspaces.egress.decided import serving
from workspaces.egress.decided.journal import Journal

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Journal]:
    """The journal of the proxy that comes next."""
    following = Journal(tmp_path / "egress-journal")
    yield following
    following.abandon()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends a record only asks."""
    monkeypatch.setattr(egress_endings, "SETTLE_SECONDS", 0.0)


def test_a_record_is_settled_behind_what_a_killed_proxy_has_left(
    journal: Journal, following: Journal
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    journal.abandon()
    assert serving.take(network_of(attempt).pk, attempt.pk, following.id)
    egress_endings.settle(run)
    following.close(attempt.pk)
    assert following.settle(attempt.pk)
    assert hosts(run) == [("a.test", 1)]
    assert network_of(attempt).settled_at is not None


def test_a_record_is_not_settled_while_another_proxy_has_decisions_for_it(
    journal: Journal, following: Journal
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    assert serving.take(network_of(attempt).pk, attempt.pk, following.id)
    egress_endings.settle(run)
    following.close(attempt.pk)
    assert not following.settle(attempt.pk), "the other one is just ending"
    assert network_of(attempt).settled_at is None
    journal.flush()
    assert following.settle(attempt.pk)
    assert hosts(run) == [("a.test", 1)]


def test_a_journal_that_is_gone_is_a_loss_of_the_records_it_was_for(
    journal: Journal, following: Journal, tmp_path: Path
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    journal.abandon()
    shutil.rmtree(tmp_path / "egress-journal" / journal.id)
    assert known_networks._of_bridge(network_of(attempt).pk, following) is not None
    following.flush()
    assert recorded(run) == []
    assert losses(run) == [DAMAGED]


def test_a_journal_that_is_still_there_is_no_loss(journal: Journal, following: Journal) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    journal.abandon()
    assert known_networks._of_bridge(network_of(attempt).pk, following) is not None
    following.flush()
    following.recover()
    assert hosts(run) == [("a.test", 1)]
    assert losses(run) == []


def test_one_record_that_is_held_does_not_keep_the_others_of_a_killed_proxy_waiting(
    journal: Journal, following: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(egress_decisions, "LOCK_MS", 50)
    monkeypatch.setattr(journals, "LEFT_RETRY_SECONDS", 0.0)
    held, held_run = with_policy(journal.id)
    free, free_run = with_policy(journal.id)
    for attempt in (held, free, held):
        journal.add(decision(attempt.pk))
    journal.abandon()
    with locked(head_of(held_run)):
        following.recover()
        assert hosts(free_run) == [("a.test", 1)]
        assert network_of(free).served_by == following.id
        assert network_of(held).served_by == journal.id, "not all of it is stored"
    following.recover()
    assert hosts(held_run) == [("a.test", 2)]
    assert network_of(held).served_by == following.id
    assert not (tmp_path / "egress-journal" / journal.id).exists()


def test_a_proxy_does_not_wait_long_for_a_record_to_serve_its_network(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_decisions, "LOCK_MS", 50)
    attempt, run = with_policy()
    with locked(head_of(run)):
        assert known_networks._of_bridge(network_of(attempt).pk, journal) is None
    assert known_networks._of_bridge(network_of(attempt).pk, journal) is not None
