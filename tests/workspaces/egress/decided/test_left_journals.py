"""What a proxy that has ended left in its journal is stored by the next one."""

from __future__ import annotations

import pytest

from tests.workspaces.egress.conftest import Clock
from tests.workspaces.egress.decided.decided_rows import decision, hosts, network_of, with_policy
from tests.workspaces.egress.decided.refusing import Refusing
from workspaces.egress.decided import journal as journals
from workspaces.egress.decided import serving
from workspaces.egress.decided.journal import Journal

pytestmark = pytest.mark.django_db


@pytest.mark.django_db(transaction=True)
def test_a_record_of_a_killed_proxy_is_left_alone_for_a_while_with_all_its_passes(
    journal: Journal, following: Journal, database: Refusing, clock: Clock
) -> None:
    attempt, run = with_policy()
    database.refused = {attempt.pk}
    for host in ("a.test", "b.test"):
        journal.add(decision(attempt.pk, host))
        journal._of(attempt.pk)._next(journal.id)
        journal._of(attempt.pk)._frozen = None
    journal.abandon()
    following.recover()
    assert database.asked_now() == [attempt.pk], "what comes behind it has to wait"
    database.refused = set()
    following.recover()
    clock.now += 9.5
    following.recover()
    assert database.asked_now() == []
    assert not database.patient
    clock.now += 0.5
    following.recover()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]
    assert following._left == {}


@pytest.mark.django_db(transaction=True)
def test_a_record_that_is_about_to_end_is_tried_at_once(
    journal: Journal, following: Journal, database: Refusing, clock: Clock
) -> None:
    attempt, run = with_policy(journal.id)
    other, other_run = with_policy(journal.id)
    database.refused = {attempt.pk, other.pk}
    for each in (attempt, other):
        journal.add(decision(each.pk))
    (journal._folder / f"{attempt.pk}.9.new").write_text("half of it")
    journal.abandon()
    following.recover()
    database.asked_now()
    database.refused = set()
    serving.take(network_of(attempt).pk, attempt.pk, following.id)
    following.close(attempt.pk)
    assert following.settle(attempt.pk, patient=False)
    assert hosts(run) == [("a.test", 1)]
    assert (database.asked_now(), database.patient) == ([attempt.pk], True)
    assert network_of(other).served_by == journal.id, "its decisions are not stored"
    clock.now += journals.LEFT_RETRY_SECONDS
    following.recover()
    assert hosts(other_run) == [("a.test", 1)]


@pytest.mark.django_db(transaction=True)
def test_after_three_records_that_cannot_be_written_to_a_pass_goes_no_further(
    journal: Journal, following: Journal, database: Refusing, clock: Clock
) -> None:
    attempts = [with_policy()[0] for _ in range(4)]
    database.refused = {attempt.pk for attempt in attempts}
    for attempt in attempts:
        journal.add(decision(attempt.pk))
    journal.abandon()
    following.recover()
    assert database.asked_now() == [attempt.pk for attempt in attempts[:3]]
    following.recover()
    assert database.asked_now() == [attempts[3].pk], "the others come last"
    assert journal._folder.is_dir()


@pytest.mark.django_db(transaction=True)
def test_what_one_proxy_could_not_store_the_next_one_does(
    journal: Journal, following: Journal, database: Refusing
) -> None:
    attempt, run = with_policy()
    database.refused = {attempt.pk}
    journal.add(decision(attempt.pk))
    journal.abandon()
    following.recover()
    following.abandon()
    database.refused = set()
    with Journal(journal._root):
        pass
    assert hosts(run) == [("a.test", 1)]
