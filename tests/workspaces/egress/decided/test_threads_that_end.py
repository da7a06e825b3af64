"""The threads of a proxy that write decisions leave no connection to the database behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from tests.workspaces.egress.decided.decided_rows import decision, hosts, with_policy
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.settling import Settling
from workspaces.egress.decisions import DecisionLog
from workspaces.models import WorkspaceEvent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def made() -> Iterator[dict[str, list[BaseDatabaseWrapper]]]:
    """The connections that were made, by the name of the thread that made each."""
    made: dict[str, list[BaseDatabaseWrapper]] = {}

    def keep(connection: BaseDatabaseWrapper, **_: Any) -> None:
        made.setdefault(threading.current_thread().name, []).append(connection)

    connection_created.connect(keep)
    yield made
    connection_created.disconnect(keep)


def _are_closed(connections: list[BaseDatabaseWrapper]) -> bool:
    return all(each.connection is None for each in connections)


def test_the_thread_of_the_journal_closes_its_connection(
    made: dict[str, list[BaseDatabaseWrapper]], tmp_path: Path
) -> None:
    attempt, run = with_policy()
    with Journal(tmp_path / "egress-journal") as journal:
        journal.add(decision(attempt.pk))
    assert hosts(run) == [("a.test", 1)]
    assert made["egress journal"]
    assert _are_closed(made["egress journal"])


def test_a_thread_that_settles_a_network_closes_its_connection(
    made: dict[str, list[BaseDatabaseWrapper]], journal: Journal
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    settling = Settling(journal)
    settling.go_on([attempt.pk])
    settling._tries[attempt.pk].done.result()
    settling.stop()
    assert hosts(run) == [("a.test", 1)]
    assert made["egress settling_0"]
    assert _are_closed(made["egress settling_0"])


def test_the_thread_of_the_events_closes_its_connection(
    made: dict[str, list[BaseDatabaseWrapper]],
) -> None:
    attempt, _ = with_policy()
    with DecisionLog() as decisions:
        decisions.add(decision(attempt.pk))
    assert WorkspaceEvent.objects.filter(type=WorkspaceEvent.Type.EGRESS_ALLOWED).exists()
    assert made["egress decisions"]
    assert _are_closed(made["egress decisions"])
