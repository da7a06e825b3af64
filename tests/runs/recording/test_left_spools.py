"""What workspaces still hold of runs that have ended."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from structlog.testing import capture_logs

from runs.models import Run
from runs.record import store
from runs.recording import run_sweeper as sweeper
from tests.runs.executable import make_executable
from tests.runs.recording.scripted_agent import ScriptedAgent
from tests.runs.recording.whole_runs import whole
from workspaces.runtimes.base import LaunchError

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_still_runs_of_a_run_that_has_ended_is_stopped() -> None:
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    spool = whole(run)
    spool.sealed = False
    agent = ScriptedAgent(spools={run.pk: spool})

    leftovers = sweeper.Leftovers(agent, committed=timedelta())
    assert leftovers.acknowledge() == 0
    assert ("stop", str(run.pk), "--reason", "stop") in agent.calls

    spool.sealed = True
    assert leftovers.acknowledge() == 1
    assert agent.spools == {}


def test_the_spool_of_a_dead_recorder_is_sealed_and_removed_when_its_run_has_ended() -> None:
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    spool = whole(run)
    spool.sealed, spool.abandoned = False, True
    agent = ScriptedAgent(spools={run.pk: spool})

    leftovers = sweeper.Leftovers(agent, committed=timedelta())
    assert leftovers.acknowledge() == 0
    assert leftovers.acknowledge() == 1

    assert agent.spools == {}


@pytest.mark.parametrize(
    ("full", "told"), [(False, "unrecorded_spool_sealed"), (True, "unrecorded_spool_not_sealed")]
)
def test_the_log_says_that_a_spool_was_sealed_only_where_it_was(full: bool, told: str) -> None:
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    spool = whole(run)
    spool.sealed, spool.abandoned, spool.disk_full = False, True, full

    with capture_logs() as logs:
        sweeper.Leftovers(
            ScriptedAgent(spools={run.pk: spool}), committed=timedelta()
        ).acknowledge()

    assert [line["event"] for line in logs if line["event"].startswith("unrecorded")] == [told]


@pytest.mark.parametrize("told", [b"[7]", b"{}", b'[{"runId":1}]', b"[" * 100_000, b"\xff"])
def test_a_workspace_that_tells_nonsense_of_its_spools_is_passed_over(told: bytes) -> None:
    store.close_early(make_executable().number, reason="record-lost", detail="Lost.")

    assert (
        sweeper.Leftovers(ScriptedAgent(runs_answer=told), committed=timedelta()).acknowledge() == 0
    )


def test_a_workspace_is_asked_for_leftovers_once_after_its_last_run() -> None:
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    agent = ScriptedAgent(unreachable=[LaunchError("engine-timeout", "Away.")])
    leftovers = sweeper.Leftovers(agent, committed=timedelta())
    asked = []

    for _ in range(4):
        leftovers.acknowledge()
        asked.append(len(agent.calls))
    assert asked == [1, 2, 2, 2]  # the first time it could not be reached

    later = make_executable(attempt=run.attempt)
    leftovers.acknowledge()
    assert len(agent.calls) == 2
    store.close_early(later.number, reason="record-lost", detail="Lost.")
    agent.spools[later.pk] = whole(later)
    assert [leftovers.acknowledge() for _ in range(3)] == [1, 0, 0]
    assert [call for call in agent.calls if call == ("runs",)] == [("runs",)] * 3

    sweeper.Leftovers(agent, committed=timedelta()).acknowledge()
    assert agent.calls[-1] == ("runs",)
    assert agent.calls.count(("runs",)) == 4


def test_a_run_that_has_just_ended_counts_when_those_that_ended_before_it_are_committed() -> None:
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    agent = ScriptedAgent()
    leftovers = sweeper.Leftovers(agent, committed=timedelta(hours=1))

    leftovers.acknowledge()
    assert agent.calls == []
    Run.objects.filter(pk=run.pk).update(finished_at=Now() - timedelta(hours=2))
    leftovers.acknowledge()
    assert agent.calls == [("runs",)]
