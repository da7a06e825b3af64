"""Recorders that lose their run to another worker, or are told to stop."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from controlplane.work.leases import LeaseLost
from runs.models import Run, RunHead
from runs.recording.control import RunControl
from runs.recording.recorder import Recorder
from runs.recording.thread_connections import StoppedError
from tests.runs.executable import LEASE, claim, make_executable
from tests.runs.recording.scripted_agent import ScriptedAgent, Tailed
from tests.runs.recording.whole_runs import LIMITS, assert_whole, begun_session, record, whole

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_recorder_that_lost_its_lease_writes_nothing() -> None:
    run = make_executable()
    stale = claim(run, lease=timedelta(seconds=-1))
    claim(run, "worker-b")
    agent = ScriptedAgent(spools={run.pk: whole(run)})

    with pytest.raises(LeaseLost):
        Recorder(stale, RunControl(), adapter=agent, limits=LIMITS).record()

    assert RunHead.objects.get(pk=run.number).event_count == 0
    assert [call for call in agent.calls if call[0] == "exec"] == []


@pytest.mark.parametrize(
    ("lease", "seconds_ago"), [(0.5, 0.0), (60.0, 5.0)], ids=["short lease", "long ago"]
)
def test_a_claim_that_may_be_another_ones_by_now_starts_nothing(
    lease: float, seconds_ago: float
) -> None:
    run = make_executable()
    stale = claim(run, lease=timedelta(seconds=lease))
    Run.objects.filter(pk=run.pk).update(lease_expires_at=Now())
    claim(run, "worker-b")
    agent = ScriptedAgent(spools={run.pk: whole(run)})
    recorder = Recorder(
        stale,
        RunControl(),
        adapter=agent,
        limits=LIMITS,
        claimed=time.monotonic() - seconds_ago,
    )

    with pytest.raises(LeaseLost):
        recorder.record()

    assert [call for call in agent.calls if call[0] == "exec"] == []


def test_what_a_worker_starts_that_has_just_lost_its_lease_is_stored_by_the_other_one() -> None:
    run = make_executable()
    stale = claim(run, lease=timedelta(minutes=1))
    Run.objects.filter(pk=run.pk).update(lease_expires_at=Now())
    current = claim(run, "worker-b")
    agent = ScriptedAgent(to_execute={run.pk: whole(run)})
    late = Recorder(stale, RunControl(), adapter=agent, limits=LIMITS, claimed=time.monotonic())

    with pytest.raises(LeaseLost):
        late.record()
    head = RunHead.objects.get(pk=run.number)
    assert (head.source_id, head.event_count, agent.spools[run.pk].acknowledged) == ("", 0, 0)

    Recorder(current, RunControl(), adapter=agent, limits=LIMITS).record()
    assert_whole(run)


class OvertakenAgent(ScriptedAgent):
    """Another worker claims the run, whose lease ran out, before its tail speaks or after."""

    after_greeting = False

    def open_agent(self, run_id: uuid.UUID, arguments: Sequence[str]) -> Tailed:
        """Answer ``tail``, and have the run claimed meanwhile."""
        opened = super().open_agent(run_id, arguments)
        assert isinstance(opened, Tailed)
        return _Overtaken(opened, self, uuid.UUID(arguments[1]))


class _Overtaken(Tailed):
    def __init__(self, tailed: Tailed, agent: OvertakenAgent, run_id: uuid.UUID) -> None:
        self._tailed, self._run_id = tailed, run_id
        self._waits, self._due = agent.after_greeting, not agent.after_greeting

    def read(self, timeout: float, *, wake: int = -1) -> bytes | None:
        """Pass on the next piece."""
        if self._due:
            self._waits = False
            Run.objects.filter(pk=self._run_id).update(lease_expires_at=Now() - LEASE)
            claim(Run.objects.get(pk=self._run_id), "worker-b")
        piece = self._tailed.read(timeout)
        self._due = self._waits and b"\n" in (piece or b"")
        return piece

    def write(
        self, data: bytes, *, timeout: float | None = None, within: float | None = None
    ) -> None:
        """Pass on acknowledgements."""
        self._tailed.write(data)

    def exit_code(self) -> int | None:
        """Return what was prepared."""
        return self._tailed.exit_code()


@pytest.mark.parametrize("opened", [False, True], ids=["before it opens", "once it has opened"])
def test_a_recorder_whose_run_another_one_claims_stores_nothing_more(opened: bool) -> None:
    run = begun_session()
    spool = whole(run)
    agent = OvertakenAgent(spools={run.pk: spool}, piece=40)
    agent.after_greeting = opened

    with pytest.raises(LeaseLost):
        record(run, agent)

    head = RunHead.objects.get(pk=run.number)
    assert (head.source_id, head.event_count) == (spool.spool_id if opened else "", 0)
    assert spool.acknowledged == 0
    row = Run.objects.get(pk=run.pk)
    assert (row.status, row.worker_id) == (Run.Status.RUNNING, "worker-b")


def test_a_recorder_that_is_told_to_stop_stops_and_leaves_the_run_open() -> None:
    run = claim(make_executable())
    control = RunControl()
    control.stopped.set()

    with pytest.raises(StoppedError):
        Recorder(run, control, adapter=ScriptedAgent(), limits=LIMITS).record()

    Run.objects.require(run.fence)
