"""How networks that could not be settled are settled later, and what a stop leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from runs.record.egress_decisions import EgressDecisions
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.conftest import Clock
from tests.workspaces.egress.decided.decided_rows import decision, hosts, network_of, with_policy
from tests.workspaces.egress.decided.refusing import Refusing
from workspaces.egress.decided import settling as settlings
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.keeping import Pass
from workspaces.egress.decided.settling import THREADS, Settling
from workspaces.models import Attempt, EgressNetwork

pytestmark = pytest.mark.django_db


@pytest.fixture
def settling(journal: Journal, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settling]:
    """What settles the networks of a proxy, by the clock of the test."""
    monkeypatch.setattr(settlings, "time", clock)
    settling = Settling(journal)
    yield settling
    settling.stop()


def tried(settling: Settling, attempt: Attempt) -> None:
    """Have it go on with one attempt, and what it begins end."""
    settling.go_on([attempt.pk])
    settling._tries[attempt.pk].done.result(LONG_WAIT)


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_settled_is_tried_again_patiently_and_ever_less_often(
    journal: Journal, database: Refusing, clock: Clock, settling: Settling
) -> None:
    attempt, run = with_policy(journal.id)
    EgressNetwork.objects.end(attempt.pk)
    journal.close(attempt.pk)
    journal.add(decision(attempt.pk, allowed=False))
    database.refused = {attempt.pk}
    tried(settling, attempt)
    assert (database.asked_now(), database.patient) == ([attempt.pk], False)
    for pause in (0.3, 0.6, 1.2, 2.4, 4.8, 9.6, 10, 10):
        tried(settling, attempt)
        clock.now += pause - 0.01
        tried(settling, attempt)
        assert database.asked_now() == []
        clock.now += 0.02
        tried(settling, attempt)
        assert (database.asked_now(), database.patient) == ([attempt.pk], True)
    database.refused = set()
    tried(settling, attempt)
    clock.now += 10
    tried(settling, attempt)
    assert hosts(run) == [("a.test", 1)]
    assert network_of(attempt).settled_at is not None
    settling.go_on([])
    journal.add(decision(attempt.pk, allowed=False))
    tried(settling, attempt)
    assert not database.patient, "who has not asked for a while is tried at once"


@pytest.mark.django_db(transaction=True)
def test_a_proxy_that_stops_settles_what_it_has_begun_and_begins_nothing_more(
    journal: Journal, settling: Settling, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = [with_policy(journal.id)[0] for _ in range(THREADS + 2)]
    asked, goes_on, real = [], threading.Event(), EgressDecisions.store

    def store_(records: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
        asked.append(decided.attempt_id)
        goes_on.wait(LONG_WAIT)
        return real(records, decided, patient=patient)

    monkeypatch.setattr(EgressDecisions, "store", store_)
    for attempt in attempts:
        journal.add(decision(attempt.pk))
    settling.go_on([attempt.pk for attempt in attempts])
    eventually(lambda: len(asked) == THREADS, what="all threads are busy")
    stopping = threading.Thread(target=settling.stop)
    stopping.start()
    waiting = [each.done for each in settling._tries.values()][THREADS:]
    eventually(lambda: all(each.cancelled() for each in waiting), what="the others are left")
    assert stopping.is_alive()
    goes_on.set()
    stopping.join(LONG_WAIT)
    assert len(asked) == THREADS
