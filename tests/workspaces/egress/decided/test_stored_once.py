"""A decision is in the record once, wherever its proxy is killed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from runs.agent.record.frames import Kind
from runs.models import RunEvent
from runs.record.egress_decisions import EgressDecisions
from runs.record.verify import verify_run
from tests.runs.record_factory import Source
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    network_of,
    recorded,
    with_policy,
)
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.keeping import Pass

pytestmark = pytest.mark.django_db


def next_proxy(journal: Journal, folder: Path) -> Journal:
    """Kill a proxy, and start another one that takes over what it has left."""
    journal.abandon()
    following = Journal(folder / "egress-journal")
    following.recover()
    return following


def test_a_decision_is_an_event_with_what_was_decided_and_no_secret(journal: Journal) -> None:
    attempt, run = with_policy()
    told: dict[str, Any] = {"method": "GET", "credentials": ("7f2c",), "sent": 5, "received": 9}
    journal.add(decision(attempt.pk, **told))
    journal.flush()
    assert recorded(run) == [
        {
            "decision": "allowed",
            "protocol": "tls",
            "host": "a.test",
            "address": "203.0.113.1",
            "port": 443,
            "rule": "rules/0",
            "method": "GET",
            "credentials": ["7f2c"],
            "connections": 1,
            "bytesSent": 5,
            "bytesReceived": 9,
        }
    ]
    assert verify_run(run).ok
    assert head_of(run).coverage["egress"] == {"state": "on", "method": "proxy"}


def test_a_refusal_says_why_and_what_has_no_value_is_left_out(journal: Journal) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk, "", allowed=False))
    journal.flush()
    assert recorded(run) == [
        {
            "decision": "refused",
            "protocol": "tls",
            "address": "203.0.113.1",
            "port": 443,
            "rule": "default",
            "reason": "No rule names it.",
            "connections": 1,
            "bytesSent": 0,
            "bytesReceived": 0,
        }
    ]


def test_the_source_of_a_record_goes_on_around_decisions(journal: Journal) -> None:
    attempt, run = with_policy()
    source = Source(run)
    source.open()
    source.started()
    source.process()
    source.append()
    journal.add(decision(attempt.pk))
    journal.flush()
    assert source.open() == 2, "the source is where it was"
    source.waiting = list(source.contents)  # sent again, as after a lost connection
    source.process()
    source.append()
    told = RunEvent.objects.filter(run_number=run.number).order_by("sequence")
    assert list(told.values_list("kind", flat=True)) == [
        Kind.COVERAGE_CHANGED,
        Kind.RECORD_STARTED,
        Kind.PROCESS_STARTED,
        Kind.EGRESS_DECIDED,
        Kind.PROCESS_STARTED,
    ]
    head = head_of(run)
    assert head.coverage["egress"]["state"] == "on", "a source does not change what is ours"
    assert head.loss_count == 0
    assert verify_run(run).ok


def test_what_a_killed_proxy_has_written_is_stored_by_the_next_one(
    journal: Journal, tmp_path: Path
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    journal.add(decision(attempt.pk))
    journal.add(decision(attempt.pk, "b.test", allowed=False))
    assert recorded(run) == []
    following = next_proxy(journal, tmp_path)
    assert hosts(run) == [("a.test", 2), ("b.test", 1)]
    assert network_of(attempt).served_by == following.id
    again = next_proxy(following, tmp_path)
    assert len(recorded(run)) == 2
    again.abandon()


def test_a_proxy_killed_between_the_commit_and_its_file_stores_nothing_twice(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk))

    def killed(path: Path, **_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            journal.flush()
    assert hosts(run) == [("a.test", 1)]
    next_proxy(journal, tmp_path).abandon()
    assert hosts(run) == [("a.test", 1)]


@pytest.mark.django_db(transaction=True)
def test_a_commit_of_which_nobody_heard_is_not_repeated(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, run = with_policy()
    store = EgressDecisions.store

    def unheard(self: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
        store(self, decided, patient=patient)
        raise OperationalError("the connection was lost")

    journal.add(decision(attempt.pk))
    with monkeypatch.context() as patched:
        patched.setattr(EgressDecisions, "store", unheard)
        journal.flush()
    assert hosts(run) == [("a.test", 1)]
    journal.add(decision(attempt.pk, "b.test"))
    journal.settle(attempt.pk)
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]


def test_a_line_that_was_being_written_has_not_taken_effect(
    journal: Journal, tmp_path: Path
) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk))
    (file,) = (tmp_path / "egress-journal" / journal.id).glob(f"{attempt.pk}.*")
    with file.open("ab") as torn:
        torn.write(b'{"at":1,"sum":{"conn')
    next_proxy(journal, tmp_path).abandon()
    assert hosts(run) == [("a.test", 1)]
    assert head_of(run).loss_count == 0


def test_two_proxies_store_their_own_and_leave_each_other_alone(
    journal: Journal, tmp_path: Path
) -> None:
    attempt, run = with_policy()
    other = Journal(tmp_path / "egress-journal")
    journal.add(decision(attempt.pk, "a.test"))
    other.add(decision(attempt.pk, "b.test"))
    other.recover()
    assert recorded(run) == [], "the other one is alive"
    for each in (journal, other, journal, other):
        each.flush()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]
    other.abandon()


def test_a_clock_that_is_put_back_loses_nothing(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk))
    journal.flush()
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: 1_000)
        journal.add(decision(attempt.pk, "b.test"))
        journal.flush()
        journal.add(decision(attempt.pk, "c.test"))
        next_proxy(journal, tmp_path).abandon()
    assert hosts(run) == [("a.test", 1), ("b.test", 1), ("c.test", 1)]
    assert verify_run(run).ok


def test_nothing_is_left_on_the_disk_of_what_is_stored(journal: Journal, tmp_path: Path) -> None:
    attempt, _ = with_policy()
    journal.add(decision(attempt.pk))
    journal.flush()
    left = (tmp_path / "egress-journal" / journal.id).iterdir()
    assert [path.name for path in left] == ["lock"]
