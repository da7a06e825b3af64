"""Which networks a proxy serves, takes over and has settled."""

from __future__ import annotations

import pytest

from runs.models import RunHead
from runs.record import store
from runs.record.egress_decisions import EgressDecisions
from tests.workspaces.egress.decided.decided_rows import network_of, with_policy
from workspaces.egress.decided import serving
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.keeping import Pass
from workspaces.models import Attempt, EgressNetwork

pytestmark = pytest.mark.django_db


def test_a_proxy_is_asked_for_its_own_networks_that_end_and_are_not_settled(
    journal: Journal,
) -> None:
    mine, _ = with_policy(journal.id)
    with_policy("another")
    goes_on, _ = with_policy(journal.id)
    for network in EgressNetwork.objects.exclude(attempt=goes_on):
        EgressNetwork.objects.end(network.attempt_id)
    assert serving.ending(journal.id) == [(mine.pk, network_of(mine).pk)]
    serving.settled(mine.pk, "another")
    assert serving.ending(journal.id) == [(mine.pk, network_of(mine).pk)]
    serving.settled(goes_on.pk, journal.id)
    assert network_of(goes_on).settled_at is None, "it goes on"
    serving.settled(mine.pk, journal.id)
    assert serving.ending(journal.id) == []


def test_a_proxy_that_takes_a_network_has_not_settled_it(journal: Journal) -> None:
    attempt, _ = with_policy("another")
    other, _ = with_policy("another")
    EgressNetwork.objects.update(settled_at=network_of(attempt).created_at)
    assert serving.take(network_of(attempt).pk, attempt.pk, journal.id)
    assert network_of(other).served_by == "another"
    network = network_of(attempt)
    assert (network.served_by, network.settled_at) == (journal.id, None)


def test_of_a_dead_proxy_its_networks_are_taken_over_but_for_what_waits(journal: Journal) -> None:
    dead, waits, other = (with_policy(by)[0] for by in ("dead", "dead", "other"))
    serving.take_over("dead", journal.id, but={waits.pk})
    served = [network_of(each).served_by for each in (dead, waits, other)]
    assert served == [journal.id, "dead", "other"]


def test_a_network_of_what_was_erased_or_has_ended_is_served_by_nobody(journal: Journal) -> None:
    attempt, run = with_policy()
    other, _ = with_policy()
    assert EgressDecisions().is_open(attempt.pk)
    store.close_early(run.number, reason="container-gone", detail="removed")
    assert not EgressDecisions().is_open(attempt.pk)
    assert EgressDecisions().is_open(other.pk)
    assert not EgressDecisions().is_open(Attempt().pk)
    bare, bare_run = with_policy()
    RunHead.objects.filter(pk=bare_run.number).delete()
    assert not EgressDecisions().is_open(bare.pk)
    assert not EgressDecisions().store(Pass(bare.pk, journal.id, 1, []), patient=True)
