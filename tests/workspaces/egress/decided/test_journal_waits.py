"""When a journal tries again what it could not store, and whose decisions wait for whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from django.db import OperationalError

from runs.models import Run, RunHead, RunLoss
from runs.record import egress_decisions, egress_endings, store
from runs.record.egress_decisions import DAMAGED, NOT_NAMED, EgressDecisions
from tests.workspaces.egress.conftest import Clock
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    network_of,
    recorded,
    with_policy,
)
from workspaces.egress.decided import journal as journals
from workspaces.egress.decided import serving, sums, unstored
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.keeping import Pass
from workspaces.egress.decided.sums import Line, line_of
from workspaces.egress.decided.unstored import RecordEnded
from workspaces.models import Attempt, EgressNetwork

pytestmark = pytest.mark.django_db


class Refusing:
    """A database that refuses records, and the attempts for which it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[UUID] = []
        self.refused: set[UUID] = set()
        real = EgressDecisions.store

        def store_(records: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
            self.asked.append(decided.attempt_id)
            if decided.attempt_id in self.refused:
                raise OperationalError("the database is away")
            return real(records, decided, patient=patient)

        monkeypatch.setattr(EgressDecisions, "store", store_)

    def asked_now(self) -> list[UUID]:
        """Return for which attempts it was asked since the last look."""
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    return Refusing(monkeypatch)


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Journal]:
    """The journal of the proxy that comes next."""
    following = Journal(tmp_path / "egress-journal")
    yield following
    following.abandon()


# ---------------------------------------------------------------- tried again


@pytest.mark.django_db(transaction=True)
def test_a_record_that_cannot_be_written_to_is_left_alone_longer_each_time_but_not_for_ever(
    journal: Journal, database: Refusing, clock: Clock
) -> None:
    attempt, run = with_policy()
    database.refused = {attempt.pk}
    journal.add(decision(attempt.pk))
    for pause in (1, 2, 4, 8, 16, 32, 60, 60):
        journal.flush()
        assert database.asked_now() == [attempt.pk]
        clock.now += pause - 0.5
        journal.flush()
        assert database.asked_now() == []
        clock.now += 0.5
    database.refused = set()
    journal.flush()
    assert hosts(run) == [("a.test", 1)]
    database.refused = {attempt.pk}
    journal.add(decision(attempt.pk))
    journal.flush()
    clock.now += 1
    database.asked_now()
    journal.flush()
    assert database.asked_now() == [attempt.pk], "it begins with a short pause again"


def test_an_error_that_nobody_thought_of_keeps_no_other_record_waiting(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unstored, "RETRY_SECONDS", (0.0, 0.0))
    odd, odd_run = with_policy()
    other, other_run = with_policy()
    real = EgressDecisions.store

    def store_(records: EgressDecisions, decided: Pass, *, patient: bool) -> bool:
        if decided.attempt_id == odd.pk:
            raise ZeroDivisionError
        return real(records, decided, patient=patient)

    with monkeypatch.context() as patched:
        patched.setattr(EgressDecisions, "store", store_)
        journal.add(decision(odd.pk))
        journal.add(decision(other.pk))
        journal.flush()
    assert hosts(other_run) == [("a.test", 1)]
    assert hosts(odd_run) == []
    journal.flush()
    assert hosts(odd_run) == [("a.test", 1)]


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
    clock.now += journals.LEFT_RETRY_SECONDS - 0.5
    following.recover()
    assert database.asked_now() == []
    clock.now += 1
    following.recover()
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]
    assert following._left == {}


@pytest.mark.django_db(transaction=True)
def test_a_record_that_is_about_to_end_is_tried_at_once(
    journal: Journal, following: Journal, database: Refusing, clock: Clock
) -> None:
    attempt, run = with_policy(journal.id)
    database.refused = {attempt.pk}
    journal.add(decision(attempt.pk))
    journal.abandon()
    following.recover()
    database.refused = set()
    serving.take(network_of(attempt).pk, attempt.pk, following.id)
    following.close(attempt.pk)
    assert following.settle(attempt.pk)
    assert hosts(run) == [("a.test", 1)]


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


# ---------------------------------------------------------------- closed and ended


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
    journal.follow("gone", attempt.pk)
    journal.flush()
    assert RunLoss.objects.get(run_number=run.number).reason == DAMAGED


# ---------------------------------------------------------------- which networks


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
    EgressNetwork.objects.update(settled_at=network_of(attempt).created_at)
    assert serving.take(network_of(attempt).pk, attempt.pk, journal.id)
    network = network_of(attempt)
    assert (network.served_by, network.settled_at) == (journal.id, None)


def test_of_a_dead_proxy_its_networks_are_taken_over_but_for_what_waits(journal: Journal) -> None:
    dead, waits, other = (with_policy(by)[0] for by in ("dead", "dead", "other"))
    serving.take_over("dead", journal.id, but={waits.pk})
    served = [network_of(each).served_by for each in (dead, waits, other)]
    assert served == [journal.id, "dead", "other"]


def test_a_network_of_what_was_erased_or_has_ended_is_served_by_nobody(journal: Journal) -> None:
    attempt, run = with_policy()
    assert EgressDecisions().is_open(attempt.pk)
    store.close_early(run.number, reason="container-gone", detail="removed")
    assert not EgressDecisions().is_open(attempt.pk)
    assert not EgressDecisions().is_open(Attempt().pk)
    bare, bare_run = with_policy()
    RunHead.objects.filter(pk=bare_run.number).delete()
    assert not EgressDecisions().is_open(bare.pk)
    assert not EgressDecisions().store(Pass(bare.pk, journal.id, 1, []), patient=True)


# ---------------------------------------------------------------- what is stored


def stored(attempt: Attempt, number: int, *lines: Line, missing: bool = False) -> bool:
    decided = Pass(attempt.pk, "a-journal", number, lines, missing)
    return EgressDecisions().store(decided, patient=True)


def test_a_pass_is_stored_once_and_none_behind_a_later_one() -> None:
    attempt, run = with_policy()
    line = line_of(decision(attempt.pk))
    assert stored(attempt, 2, line)
    assert stored(attempt, 2, line)
    assert stored(attempt, 1, line)
    assert len(recorded(run)) == 1
    assert stored(attempt, 3, line)
    assert EgressDecisions().store(Pass(attempt.pk, "another", 1, [line]), patient=True)
    assert len(recorded(run)) == 3
    store.close_early(run.number, reason="container-gone", detail="removed")
    assert stored(attempt, 3, line), "it is stored already"
    assert not stored(attempt, 4, line)


def test_what_is_only_counted_is_a_loss_at_the_place_of_its_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sums, "MAX_DIFFERENT", 1)
    attempt, run = with_policy()
    total = sums.Sums()
    for place in range(5):
        total.add(line_of(decision(attempt.pk, f"h{place}.test", allowed=place < 3)))
    before = head_of(run).last_sequence
    assert stored(attempt, 1, *total, missing=True)
    told = [(each["decision"], each.get("host"), each["connections"]) for each in recorded(run)]
    named = [("allowed", "h0.test", 1), ("refused", "h3.test", 1)]
    assert told == [*named, ("allowed", None, 2), ("refused", None, 1)]
    losses = RunLoss.objects.filter(run_number=run.number).order_by("position")
    assert list(losses.values_list("kind", "from_sequence", "to_sequence", "count", "reason")) == [
        ("dropped_event", before + 3, before + 3, 2, NOT_NAMED),
        ("dropped_event", before + 4, before + 4, 1, NOT_NAMED),
        ("dropped_event", before + 1, None, None, DAMAGED),
    ]
    assert list(losses.values_list("detected_via", flat=True)) == ["marker", "marker", "gap"]


def test_a_finding_is_told_as_one(journal: Journal) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk, allowed=False, finding=True))
    journal.flush()
    assert recorded(run)[0]["decision"] == "finding"


def test_equal_decisions_are_one_and_what_was_told_of_the_first_is_not_changed() -> None:
    one = line_of(decision(Attempt().pk, sent=3))
    total = sums.Sums()
    total.add(one)
    total.add(one)
    (both,) = total
    assert (both.total.connections, both.total.sent, len(total)) == (2, 6, 1)
    assert one.total.connections == 1


def test_a_line_of_the_journal_says_all_of_a_decision() -> None:
    told = decision(
        Attempt().pk,
        allowed=False,
        finding=True,
        another_rule=True,
        method="PUT",
        credentials=("7f2c",),
        received=4,
    )
    line = line_of(told)
    assert Line.from_json(told.attempt_id, line.to_json()) == line
    counted = Line(None, True, line.total, 5)
    assert Line.from_json(told.attempt_id, counted.to_json()) == counted


def test_a_record_of_a_workspace_without_a_policy_says_nothing_of_decisions() -> None:
    attempt, run = with_policy()
    told = head_of(run).last_sequence
    attempt.spec = {"harness": {"id": "shell"}}
    egress_decisions.begin(Run(attempt=attempt, number=run.number))
    assert head_of(run).last_sequence == told


def test_a_run_of_no_attempt_waits_for_no_proxy() -> None:
    run = Run(mode=Run.Mode.BOOT)
    egress_endings.settle(run)
    egress_endings.close(run, RunHead())
    assert egress_endings.is_settled(run)
