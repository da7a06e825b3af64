"""What builds and records do is counted, by how it ends."""

from __future__ import annotations

import pytest

from builds.pipeline.job_metrics import counted, measured
from builds.pipeline.job_state import ShutdownError
from controlplane.errors import JobError
from controlplane.metrics import counting
from controlplane.metrics.families import BUILD_JOBS, BUILD_PHASES, SUM, SWEEPS
from controlplane.work.periodic import guarded
from runs.agent.record.frames import Stream
from runs.record import store
from tests.runs.record_factory import Source, make_run
from workspaces.models import LeaseLost


@pytest.fixture(autouse=True)
def _nothing_counted() -> None:
    """Forget what earlier tests have counted in this process."""
    counting.take()


def counts(family: str) -> dict[tuple[str, ...], float]:
    """Return how often each combination of labels was counted."""
    found: dict[tuple[str, ...], float] = {}
    for (name, labels, part), value in counting.pending().items():
        if name == family and part != SUM:
            found[labels] = found.get(labels, 0) + value
    return found


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (None, "succeeded"),
        (JobError("build-command-failed", "It broke."), "failed"),
        (JobError("build-cancelled", "It was cancelled."), "stopped"),
        (LeaseLost("lost"), "stopped"),
        (ValueError("a fault of ours"), "failed"),
    ],
    ids=["succeeded", "failed", "cancelled", "lost", "fault"],
)
def test_a_phase_is_measured_with_its_outcome(raised: Exception | None, outcome: str) -> None:
    @measured("push")
    def push(name: str) -> str:
        if raised is not None:
            raise raised
        return name

    if raised is None:
        assert push("a") == "a"
    else:
        with pytest.raises(type(raised)):
            push("a")
    assert counts(BUILD_PHASES.name) == {("push", outcome): 1}


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (None, "succeeded"),
        (JobError("push-failed", "It broke."), "failed"),
        (LeaseLost("lost"), "lost"),
        (ShutdownError(), "given-back"),
    ],
    ids=["succeeded", "failed", "lost", "given-back"],
)
def test_a_job_is_counted_by_how_its_worker_was_done_with_it(
    raised: Exception | None, outcome: str
) -> None:
    @counted()
    def work() -> None:
        if raised is not None:
            raise raised

    for _ in range(2):
        if raised is None:
            work()
        else:
            with pytest.raises(type(raised)):
                work()
    assert counts(BUILD_JOBS.name) == {(outcome,): 2}


def test_a_task_that_fails_is_counted_and_ends_nothing() -> None:
    def broken() -> None:
        raise ValueError("a fault of ours")

    guarded("sweep", broken, worker="run")
    guarded("sweep", lambda: None, worker="run")
    assert counts(SWEEPS.name) == {("run", "sweep", "failed"): 1, ("run", "sweep", "done"): 1}


@pytest.mark.django_db(transaction=True)
def test_what_is_stored_of_records_and_what_they_lack_is_counted_once() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    process = source.process(["bash"], streams=["stdout"])
    source.output(process, b"x" * 1000, stream=Stream.STDOUT)
    source.append()
    before = counting.pending()
    events = before[("svc_record_events_total", (), "")]
    assert events >= 3
    assert before[("svc_record_bytes_total", (), "")] > 1000
    assert store.close_early(run.number, reason="lost", detail="It is gone.")
    assert not store.close_early(run.number, reason="lost", detail="It is gone.")
    after = counting.pending()
    assert after[("svc_record_losses_total", ("early_close",), "")] == 1
    assert after[("svc_record_events_total", (), "")] == events + 1
