"""A database, a disk or a record that cannot be written to loses no decision silently."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError
from django.db import connection

from runs.models import RunHead
from runs.record import egress_decisions
from runs.record.egress_decisions import DAMAGED, UPGRADED
from runs.record.verify import verify_run
from tests.support.locked_rows import locked
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    losses,
    recorded,
    with_policy,
)
from workspaces.egress.decided import unstored
from workspaces.egress.decided.journal import Journal
from workspaces.management.commands import egressproxy
from workspaces.models import Attempt


@pytest.mark.django_db(transaction=True)
def test_decisions_wait_while_the_database_is_read_only(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unstored, "RETRY_SECONDS", (0.0, 0.0))
    attempt, run = with_policy()
    journal.add(decision(attempt.pk))
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    journal.flush()
    journal.add(decision(attempt.pk, "b.test"))
    journal.flush()
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = off")
    assert recorded(run) == []
    journal.settle(attempt.pk)
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]


@pytest.mark.django_db(transaction=True)
def test_a_record_that_somebody_holds_keeps_no_other_waiting_for_long(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_decisions, "LOCK_MS", 50)
    held, held_run = with_policy()
    free, free_run = with_policy()
    with locked(head_of(held_run)):
        journal.add(decision(held.pk))
        journal.add(decision(free.pk))
        journal.flush()
        assert hosts(free_run) == [("a.test", 1)]
    assert recorded(held_run) == []
    journal.settle(held.pk)
    assert hosts(held_run) == [("a.test", 1)]


@pytest.mark.django_db
def test_what_cannot_be_written_is_not_allowed_and_a_refusal_becomes_a_loss(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, run = with_policy()
    with monkeypatch.context() as patched:
        patched.setattr("os.write", lambda *_: 3)  # as on a full disk
        with pytest.raises(OSError, match="No space left"):
            journal.add(decision(attempt.pk))
        journal.add(decision(attempt.pk, allowed=False))
    journal.add(decision(attempt.pk, "b.test"))
    journal.flush()
    assert hosts(run) == [("b.test", 1)]
    assert losses(run) == [DAMAGED]
    assert verify_run(run).ok


@pytest.mark.django_db
def test_a_damaged_line_of_a_journal_is_a_loss_and_the_others_are_stored(
    journal: Journal, tmp_path: Path
) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk))
    (file,) = (tmp_path / "egress-journal" / journal.id).glob(f"{attempt.pk}.*")
    with file.open("ab") as damaged:
        damaged.write(b'{"at":"x"}\nnothing\n')
    journal.add(decision(attempt.pk, "b.test"))
    journal.abandon()
    following = Journal(tmp_path / "egress-journal")
    following.recover()
    following.abandon()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]
    assert losses(run) == [DAMAGED]


@pytest.mark.django_db
def test_decisions_of_what_was_erased_are_forgotten(journal: Journal, tmp_path: Path) -> None:
    attempt = Attempt()
    journal.add(decision(attempt.pk))
    journal.flush()
    assert not list((tmp_path / "egress-journal" / journal.id).glob(f"{attempt.pk}.*"))


def test_a_proxy_that_cannot_write_its_journal_says_where_and_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match=r"journal of decisions in .* cannot be written: Not a"):
        egressproxy._journal(tmp_path / "file" / "egress-journal")


@pytest.mark.django_db
def test_a_record_of_an_earlier_release_says_nothing_until_it_has_a_decision(
    journal: Journal,
) -> None:
    attempt, run = with_policy()
    RunHead.objects.filter(pk=run.number).update(coverage={})  # as it was begun then
    assert "egress" not in head_of(run).coverage
    journal.add(decision(attempt.pk))
    journal.flush()
    journal.add(decision(attempt.pk))
    journal.flush()
    assert head_of(run).coverage == {
        "egress": {"state": "limited", "method": "proxy", "reason": UPGRADED}
    }
    assert hosts(run) == [("a.test", 1), ("a.test", 1)]
    assert verify_run(run).ok
