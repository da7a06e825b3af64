"""Runs and sessions of which nothing is heard are waited for, but not for ever."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from runs.models import Run, RunCheckpoint, RunLoss
from runs.record import store
from runs.recording.control import RunControl
from runs.recording.recorder import NOT_BEGUN_SECONDS, Recorder
from tests.runs.executable import claim, make_executable
from tests.runs.recording.scripted_agent import Executed, ScriptedAgent, Spool, Tailed
from tests.runs.recording.whole_runs import AWAY, LIMITS, assert_whole, begun_session, record, whole
from workspaces.runtimes.base import LaunchError

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_session_that_has_begun_and_never_had_a_spool_is_ended() -> None:
    run = record(begun_session(ago=timedelta(seconds=NOT_BEGUN_SECONDS - 1)), ScriptedAgent())

    assert (run.status, run.error_code) == (Run.Status.FAILED, "session-not-begun")
    assert run.finished_at is not None
    assert run.started_at is not None
    assert run.finished_at - run.started_at >= timedelta(seconds=NOT_BEGUN_SECONDS)
    assert not RunLoss.objects.filter(run_number=run.number).exists()


def test_a_session_without_a_spool_is_not_waited_for_anew_by_every_recorder() -> None:
    run = record(begun_session(ago=timedelta(minutes=5)), agent := ScriptedAgent())

    assert run.error_code == "session-not-begun"
    assert [call[0] for call in agent.calls] == ["tail"]


def test_a_session_that_has_just_begun_is_waited_for() -> None:
    run = begun_session()
    agent = ScriptedAgent(spools={run.pk: whole(run, code=3)}, unreachable=[AWAY])

    run = record(run, agent)

    assert (run.status, run.exit_code) == (Run.Status.COMPLETED, 3)


def test_a_run_that_is_silent_long_after_its_time_is_ended() -> None:
    run = make_executable(
        time_limit_ms=1000, status=Run.Status.RUNNING, started_at=Now() - timedelta(minutes=5)
    )
    recorder = Recorder(
        claim(run), RunControl(), adapter=ScriptedAgent(unreachable=[AWAY] * 1000), limits=LIMITS
    )
    recorder._heard -= 120

    recorder.record()

    run.refresh_from_db()
    assert (run.status, run.error_code) == (Run.Status.FAILED, "time-limit-exceeded")


class Quiet(ScriptedAgent):
    """Nothing was heard of it for two minutes whenever its record is asked for.

    ``rest`` is what its spool has in the end, from the second time on.
    """

    recorder: Recorder
    rest: list[bytes] | None = None

    def open_agent(self, run_id: uuid.UUID, arguments: Sequence[str]) -> Tailed | Executed:
        """Answer as ever."""
        if arguments[0] == "tail":
            self.recorder._heard -= 120
            (spool,) = self.spools.values()
            if self.rest and [call[0] for call in self.calls].count("tail") > 1:
                spool.contents, spool.sealed = self.rest, True
        return super().open_agent(run_id, arguments)


def claimed_long_ago() -> tuple[Run, Spool, list[bytes]]:
    """Return a run of a minute at most, the beginning of its spool, and all of its contents."""
    run = make_executable(
        time_limit_ms=60_000, status=Run.Status.RUNNING, started_at=Now() - timedelta(hours=1)
    )
    spool = whole(run)
    contents, spool.contents, spool.sealed = spool.contents, spool.contents[:3], False
    return run, spool, contents


def test_a_run_that_began_long_after_its_claim_has_its_time_from_then_on() -> None:
    run, spool, contents = claimed_long_ago()
    agent = Quiet(to_execute={run.pk: spool})
    agent.rest = contents
    agent.recorder = Recorder(claim(run), RunControl(), adapter=agent, limits=LIMITS)

    agent.recorder.record()

    assert_whole(Run.objects.get(pk=run.pk))


def test_who_takes_a_run_over_counts_its_time_from_its_beginning() -> None:
    run, spool, _ = claimed_long_ago()
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents)
    RunCheckpoint.objects.update(ingested_at=Now() - timedelta(minutes=5))
    agent = Quiet(spools={run.pk: spool})
    agent.recorder = Recorder(claim(run), RunControl(), adapter=agent, limits=LIMITS)

    agent.recorder.record()

    run.refresh_from_db()
    assert (run.status, run.error_code) == (Run.Status.FAILED, "time-limit-exceeded")


def test_a_run_whose_engine_is_away_is_not_taken_for_silent() -> None:
    run = make_executable(
        time_limit_ms=1000, status=Run.Status.RUNNING, started_at=Now() - timedelta(hours=1)
    )
    agent = ScriptedAgent(to_execute={run.pk: whole(run)}, engine_away=True)
    recorder = Recorder(claim(run), RunControl(), adapter=agent, limits=LIMITS)
    recorder._heard -= 120

    recorder.record()

    assert_whole(Run.objects.get(pk=run.pk))


def test_a_session_whose_agent_says_nothing_is_ended_when_its_end_is_asked_for() -> None:
    run = make_executable(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING)
    silent = LaunchError("agent-silent", "The agent in the workspace gave no answer for 20 s.")
    control = RunControl()
    control.cancelled.set()
    recorder = Recorder(
        claim(run), control, adapter=ScriptedAgent(unreachable=[silent] * 1000), limits=LIMITS
    )
    recorder._heard -= 120
    recorder._stop_run()
    recorder._stopped_by -= 120

    recorder.record()

    run.refresh_from_db()
    assert run.status == Run.Status.CANCELLED
