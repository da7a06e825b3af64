"""What records hold of the decisions that are stored."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from runs.agent.record.frames import Confidence, Kind, Method
from runs.models import Run, RunEvent, RunHead, RunLoss
from runs.record import egress_decisions, egress_endings, store
from runs.record.egress_decisions import DAMAGED, NOT_NAMED, UPGRADED, EgressDecisions
from tests.runs.executable import make_executable
from tests.workspaces.egress.decided.decided_rows import decision, head_of, recorded, with_policy
from workspaces.egress.decided import sums
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decided.keeping import Pass
from workspaces.egress.decided.sums import Line, line_of
from workspaces.models import Attempt

pytestmark = pytest.mark.django_db


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
    other, other_run = with_policy()
    assert stored(other, 1, line_of(decision(other.pk)))
    assert len(recorded(other_run)) == 1


def test_decisions_are_in_the_record_of_the_boot_run_and_in_no_other_of_the_attempt() -> None:
    attempt, run = with_policy()
    other = make_executable(attempt=attempt, id=UUID(int=1))
    assert stored(attempt, 1, line_of(decision(attempt.pk)))
    assert (len(recorded(run)), len(recorded(other))) == (1, 0)


def test_events_of_decisions_say_when_and_how_they_were_observed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_750_000_000_123_456_789)
    attempt, run = with_policy()
    RunHead.objects.filter(pk=run.number).update(coverage={})  # as an earlier release began it
    assert stored(attempt, 1, line_of(decision(attempt.pk)))
    events = list(RunEvent.objects.filter(run_number=run.number).order_by("sequence"))
    for event in events:
        assert event.wall_us == 1_750_000_000_123_456
        assert (event.method, event.confidence) == (Method.PROXY, Confidence.OBSERVED)
        assert event.process_number in (None, 0)
        assert (event.stream, event.stream_offset, event.length) == (0, 0, 0)
    begun, upgraded, decided = events
    kinds = [event.kind for event in events]
    assert kinds == [Kind.COVERAGE_CHANGED, Kind.COVERAGE_CHANGED, Kind.EGRESS_DECIDED]
    told = {"source": "egress", "state": "on", "method": "proxy"}
    assert json.loads(bytes(begun.meta)) == told
    assert json.loads(bytes(upgraded.meta)) == {**told, "state": "limited", "reason": UPGRADED}
    assert json.loads(bytes(decided.meta)) == recorded(run)[0]


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
    for allowed, finding in ((True, False), (False, False), (False, True)):
        counted = Line(None, allowed, line.total, 5, finding)
        assert Line.from_json(told.attempt_id, counted.to_json()) == counted


@pytest.mark.parametrize("finding", [False, True])
def test_a_line_of_an_earlier_release_says_in_its_decision_whether_it_is_a_finding(
    finding: bool,
) -> None:
    told = decision(Attempt().pk, allowed=False, finding=finding)
    line = line_of(told)
    earlier = {name: value for name, value in line.to_json().items() if name != "finding"}
    assert Line.from_json(told.attempt_id, earlier) == line


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
