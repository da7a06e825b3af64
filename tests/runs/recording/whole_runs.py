"""Runs whose spool is whole, recorded to their end, and what their records have then."""

from __future__ import annotations

from datetime import timedelta

from django.db.models.functions import Now

from runs.agent.record.frames import Kind
from runs.models import Run, RunEvent, RunHead, RunLoss
from runs.recording.control import RunControl
from runs.recording.program_start import RecordLimits
from runs.recording.recorder import Recorder
from tests.runs.executable import claim, make_executable
from tests.runs.record_factory import Source
from tests.runs.recording.scripted_agent import ScriptedAgent, Spool
from workspaces.runtimes.base import LaunchError

LIMITS = RecordLimits(
    policy="block",
    input="masked",
    spool_bytes=1 << 20,
    segment_bytes=1 << 16,
    patch_bytes=1000,
    max_files=10,
    time_seconds=60.0,
    grace_seconds=1.0,
)
GONE = LaunchError("runtime-gone", "There is no such container.")
AWAY = LaunchError("adapter-unavailable", "The engine does not answer.")
NOT_RUNNING = LaunchError("runtime-not-running", "It does not run.")
OUTPUT = [b"first\n", b"second " * 1000, b"third\n"]


def whole(run: Run, *, code: int = 0) -> Spool:
    """Return the spool of a whole run."""
    source = Source(run)
    source.started()
    process = source.process()
    for body in OUTPUT:
        source.output(process, body)
    source.closed(process)
    source.exited(process, code=code)
    source.sealed(code=code)
    return Spool(source.source_id, source.contents)


def record(run: Run, agent: ScriptedAgent, control: RunControl | None = None) -> Run:
    """Record ``run`` to its end, and return it anew."""
    Recorder(claim(run), control or RunControl(), adapter=agent, limits=LIMITS).record()
    return Run.objects.get(pk=run.pk)


def output(run: Run) -> bytes:
    """Return everything the record has of the standard output."""
    rows = RunEvent.objects.filter(run_number=run.number, kind=Kind.IO_CHUNK).order_by("sequence")
    return b"".join(bytes(body) for body in rows.values_list("body", flat=True))


def early_close(run: Run) -> int | None:
    """Return where the record says that its end is missing from."""
    spans = RunLoss.objects.filter(run_number=run.number, process_number__isnull=True)
    return spans.get(kind=RunLoss.Kind.EARLY_CLOSE).from_sequence


def assert_whole(run: Run) -> None:
    """The record has everything, once, and says so."""
    assert output(run) == b"".join(OUTPUT)
    head = RunHead.objects.get(pk=run.number)
    sequences = list(
        RunEvent.objects.filter(run_number=run.number)
        .order_by("sequence")
        .values_list("sequence", flat=True)
    )
    assert sequences == list(range(1, 9))
    assert head.sealed_at is not None
    assert head.event_count == 8
    assert not RunLoss.objects.filter(run_number=run.number).exists()


def begun_session(*, ago: timedelta = timedelta()) -> Run:
    """Return a session that its gateway has begun some time ago."""
    return make_executable(
        mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING, started_at=Now() - ago
    )
