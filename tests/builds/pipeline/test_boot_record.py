"""What a build leaves in the record of its boot run: its programs, their output, and an end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError, connection, transaction

from builds import job_sweeper as sweeper
from builds.images.context import BuildError
from builds.images.docker_program import DockerProgram, RedactedTail
from builds.pipeline import job_state, program_record, source_writer
from builds.pipeline.build_record import BuildRecord, recording
from builds.pipeline.job_state import JobState
from controlplane.errors import JobError
from controlplane.subprocesses import ProcessResult
from runs.agent.record.frames import Kind, Stream
from runs.models import Run, RunEvent, RunHead, RunLoss, RunProcess
from runs.record import store
from runs.record.verify import verify_run
from tests.factories import claim, make_job
from tests.support.waiting import LONG_WAIT
from workspaces import services as workspaces
from workspaces.lifecycle.queueing import cancel_job
from workspaces.models import Attempt, BuildJob, LeaseLost

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "correct horse battery"


def result(**values: Any) -> ProcessResult:
    """How a program ended."""
    told = {"exit_code": 0, "signal": None, "tail": b"", "stdout": b"", "output_bytes": 0}
    return ProcessResult(**(told | {"seconds": 0.1} | values))


def run_of(job: BuildJob) -> Run:
    """The boot run of the job's attempt."""
    return Run.objects.get(pk=job.attempt.run_id)


def events(job: BuildJob, *kinds: int) -> list[RunEvent]:
    """The events of the run's record, all or some kinds."""
    found = RunEvent.objects.filter(run_number=run_of(job).number).order_by("sequence")
    return list(found.filter(kind__in=kinds) if kinds else found)


def told(event: RunEvent) -> dict[str, Any]:
    """The meta of an event."""
    return dict(json.loads(bytes(event.meta)))


def scrollback(job: BuildJob, process: int, stream: int) -> bytes:
    """What is recorded of a stream, and that no byte of it is at two places."""
    said = b""
    for event in events(job, Kind.IO_CHUNK):
        if (event.process_number, event.stream) == (process, stream):
            assert event.stream_offset == len(said)
            said += bytes(event.body)
    return said


def losses(job: BuildJob) -> list[str]:
    """The kinds of the record's loss spans."""
    found = RunLoss.objects.filter(run_number=run_of(job).number)
    return list(found.order_by("position").values_list("kind", flat=True))


@pytest.fixture
def job() -> BuildJob:
    """A job that a worker has claimed."""
    return claim(make_job())


@pytest.fixture
def record_of() -> Callable[[BuildJob], Any]:
    """Open the record of a job's build for a block."""
    return lambda job: recording(run_of(job), job, [SECRET.encode()], cancelled=threading.Event())


def test_an_attempt_has_a_queued_boot_run_from_its_beginning() -> None:
    job = make_job()
    run = run_of(job)
    assert (run.mode, run.status, run.recorded) == ("boot", "queued", True)
    assert (run.attempt_id, run.workspace_id) == (job.attempt_id, job.attempt.workspace_id)


def test_what_the_programs_of_a_build_print_is_recorded_byte_for_byte(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    printed = [bytes([number % 251]) * (number * 37) for number in range(200)]
    with record_of(job) as record:
        build = record.started("docker build", ["docker", "build", "context"])
        for number, chunk in enumerate(printed):
            build.feed("stderr" if number % 3 else "stdout", chunk)
        build.ended(result())
        record.started("docker push", ["docker", "push", "a/b"]).ended(result(exit_code=1))

    assert scrollback(job, 1, Stream.STDOUT) == b"".join(printed[::3])
    stderr = [chunk for number, chunk in enumerate(printed) if number % 3]
    assert scrollback(job, 1, Stream.STDERR) == b"".join(stderr)
    processes = RunProcess.objects.filter(run_number=run_of(job).number).order_by("process_number")
    assert [(one.name, one.argv[:2], one.leader, one.exit_code) for one in processes] == [
        ("docker build", ["docker", "build"], True, 0),
        ("docker push", ["docker", "push"], True, 1),
    ]
    first, last = events(job)[0], events(job)[-1]
    assert (first.kind, told(first)["mode"]) == (Kind.RECORD_STARTED, "build")
    assert told(first)["coverage"]["files"]["state"] == "off"
    assert last.kind == Kind.RUNTIME_STATE_CHANGED
    assert told(last)["totals"]["streams"][0]["bytes"] == len(b"".join(printed[::3]))
    assert RunHead.objects.get(run_number=run_of(job).number).source_ended
    assert losses(job) == []
    assert verify_run(run_of(job)).ok


def test_a_program_that_never_ran_is_not_shown_as_lost(
    job: BuildJob, record_of: Callable[[BuildJob], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    docker = DockerProgram("/nowhere/docker", settings.DOCKER_HOST)
    with pytest.raises(BuildError), record_of(job) as record:
        docker.logged(
            "push",
            told=record.started("docker push", ["docker", "push"]),
            watched=RedactedTail([], 1024),
            timeout=1,
            cancelled=threading.Event(),
        )

    ended = [told(event)["reason"] for event in events(job, Kind.PROCESS_EXITED)]
    assert ended == ["startFailed"]
    (process,) = RunProcess.objects.filter(run_number=run_of(job).number)
    assert (process.name, process.exit_code) == ("docker push", None)


def test_a_program_is_not_started_whose_record_has_ended(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    def go_on() -> None:
        with record_of(job) as record:
            record.started("docker build", ["docker", "build"])
            store.close_early(run_of(job).number, reason="cancelled", detail="enough")
            while True:
                # The limit of the whole test is the only clock.
                record.started("docker push", ["docker", "push"])
                threading.Event().wait(0.02)

    with pytest.raises(JobError) as caught:
        go_on()
    assert caught.value.code == "record-ended"


def test_output_appears_while_the_build_goes_on(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    with record_of(job) as record:
        build = record.started("docker build", ["docker", "build"])
        build.feed("stdout", b"first words")
        while scrollback(job, 1, Stream.STDOUT) != b"first words":
            pass  # the limit of the whole test is the only clock
        build.ended(result())


def test_a_secret_is_masked_in_output_and_arguments_without_moving_anything(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    with record_of(job) as record:
        build = record.started("docker build", ["docker", f"--token={SECRET}"])
        build.feed("stdout", b"it is " + SECRET[:9].encode())
        build.feed("stdout", SECRET[9:].encode() + b", you know")
        build.ended(result())
    masked = b"it is " + b"*" * len(SECRET) + b", you know"
    assert scrollback(job, 1, Stream.STDOUT) == masked
    chunks = [told(event) for event in events(job, Kind.IO_CHUNK) if event.meta]
    assert chunks[0]["masked"][0][0] == 6
    assert SECRET.encode() not in b"".join(bytes(event.meta) for event in events(job))


def test_output_over_the_limit_is_counted_and_named_exactly(
    job: BuildJob, record_of: Callable[[BuildJob], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_record, "OUTPUT_LIMIT", 100_000)
    with record_of(job) as record:
        build = record.started("docker build", ["docker", "build"])
        for _ in range(30):
            build.feed("stdout", b"x" * 7_000)
        build.ended(result())
    assert scrollback(job, 1, Stream.STDOUT) == b"x" * 100_000
    [loss] = RunLoss.objects.filter(run_number=run_of(job).number)
    assert (loss.kind, loss.reason) == ("dropped_event", "output-limit")
    assert (loss.from_offset, loss.to_offset, loss.count) == (100_000, 210_000, 110_000)


def test_a_build_that_fails_tells_the_end_of_its_source_all_the_same(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    error = JobError("build-command-failed", "It burns.")

    def build() -> None:
        with record_of(job) as record:
            record.started("docker build", ["docker", "build"]).feed("stderr", b"it burns")
            raise error

    with pytest.raises(JobError):
        build()
    JobState(job).fail(error, timeout=0)
    run = run_of(job)
    assert (run.status, run.error_code, run.error_message) == (
        "failed",
        "build-command-failed",
        "It burns.",
    )
    assert scrollback(job, 1, Stream.STDERR) == b"it burns"
    assert losses(job) == []
    assert verify_run(run).ok
    assert events(job)[-1].kind == Kind.RECORD_SEALED


def test_a_worker_that_died_is_followed_by_a_source_of_its_own_and_named(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    dead = f"build:{job.pk}:{job.attempt_count}"
    store.open_source(run_of(job).number, dead)
    with record_of(job_again(job)) as record:
        record.started("docker build", ["docker", "build"]).ended(result())
    assert losses(job) == ["early_close"]
    assert RunHead.objects.get(run_number=run_of(job).number).past_sources == [dead]
    assert verify_run(run_of(job)).ok


def job_again(job: BuildJob) -> BuildJob:
    """The job as the worker sees it that takes it over."""
    BuildJob.objects.release([job.fence])
    return claim(job, "worker-b")


def test_a_build_whose_record_was_ended_by_somebody_else_is_ended(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    def build() -> None:
        with record_of(job) as record:
            program = record.started("docker build", ["docker", "build"])
            store.close_early(run_of(job).number, reason="cancelled", detail="enough")
            while True:
                program.feed("stdout", b"on and on\n" * 1000)

    with pytest.raises(JobError) as caught:
        build()
    assert caught.value.code == "record-ended"


def test_a_record_that_cannot_be_opened_keeps_the_build_from_starting(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    store.close_early(run_of(job).number, reason="cancelled", detail="enough")

    def build() -> None:
        with record_of(job) as record:
            record.started("docker build", ["docker", "build"])
            pytest.fail("the build was started")

    with pytest.raises(JobError) as caught:
        build()
    assert caught.value.code == "record-ended"


@pytest.fixture
def database_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The store's writes fail while the event is set."""
    away, append = threading.Event(), store.append

    def refuse(*args: Any, **options: Any) -> store.Appended:
        if away.is_set():
            raise OperationalError("the database is away")
        return append(*args, **options)

    monkeypatch.setattr(store, "append", refuse)
    yield away
    away.clear()


def test_while_the_database_is_away_the_builder_waits_and_nothing_is_lost(
    job: BuildJob, record_of: Callable[[BuildJob], Any], database_away: threading.Event
) -> None:
    with record_of(job) as record:
        build: Any = record.started("docker build", ["docker", "build"])
        database_away.set()
        fed = threading.Event()

        def feed() -> None:
            for _ in range(100):
                build.feed("stdout", b"x" * 50_000)
            fed.set()

        thread = threading.Thread(target=feed)
        thread.start()
        assert not fed.wait(1.0)  # five megabytes do not fit into the buffer
        database_away.clear()
        thread.join()
        build.ended(result())
    assert scrollback(job, 1, Stream.STDOUT) == b"x" * 5_000_000
    assert losses(job) == []


def test_cancelling_a_job_that_waits_ends_its_run() -> None:
    job = make_job()
    assert cancel_job(job, reason="Not needed.")
    assert run_of(job).status == "cancelled"
    assert losses(job) == []


def test_cancelling_a_job_at_work_leaves_the_end_to_its_worker(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    with record_of(job) as record:
        record.started("docker build", ["docker", "build"]).feed("stdout", b"half of it")
        assert cancel_job(job, reason="Not needed.")
        assert run_of(job).status == "queued"
    JobState(job).end_cancelled_boot_run()
    assert run_of(job).status == "cancelled"
    assert scrollback(job, 1, Stream.STDOUT) == b"half of it"
    assert losses(job) == []


def test_a_build_that_starts_no_program_opens_its_record_with_its_end(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    with record_of(job) as record:
        record.state("Nothing is to be built.")
        assert RunHead.objects.get(run_number=run_of(job).number).source_id == ""
    assert [event.kind for event in events(job)] == [
        Kind.RECORD_STARTED,
        Kind.RUNTIME_STATE_CHANGED,
        Kind.RUNTIME_STATE_CHANGED,
    ]
    assert verify_run(run_of(job)).ok


def test_output_that_a_killed_worker_did_not_store_is_shown_as_lost(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    record = BuildRecord(run_of(job), job, [], cancelled=threading.Event())
    record.started("docker build", ["docker", "build"])
    # Killed here: what it had printed by now is with nobody.
    with record_of(job_again(job)):
        pass
    with pytest.raises(JobError):
        record.close("failed")  # it was not killed, but it may tell no more
    assert losses(job) == ["early_close"]


def test_the_output_of_a_build_that_loses_its_job_as_it_publishes_is_recorded(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    def lost() -> None:
        BuildJob.objects.require(replace(job.fence, count=7))

    def build() -> None:
        with record_of(job) as record:
            build = record.started("docker build", ["docker", "build"])
            build.feed("stdout", b"nearly there")
            build.ended(result())
            record.close("stopped", lost)

    with pytest.raises(LeaseLost):
        build()
    assert scrollback(job, 1, Stream.STDOUT) == b"nearly there"
    assert RunHead.objects.get(run_number=run_of(job).number).source_ended
    assert losses(job) == []


def test_a_publication_is_written_although_everything_else_is_stored(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    published = threading.Event()
    with record_of(job) as record:
        record.started("docker build", ["docker", "build"]).ended(result())
        record.close("stopped")
        number = run_of(job).number
        stored = RunHead.objects.get(run_number=number).last_sequence
        record.close("stopped", published.set)
        assert RunHead.objects.get(run_number=number).last_sequence == stored
    assert published.is_set()


def test_a_worker_that_has_lost_its_job_does_not_push_out_its_successor(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    def build() -> None:
        with record_of(job) as late:
            with record_of(job_again(job)) as record:
                program = record.started("docker build", ["docker", "build"])
                with pytest.raises(LeaseLost):
                    late.started("docker build", ["docker", "build"])
                program.feed("stdout", b"still here")
                program.ended(result())
            raise LeaseLost

    with pytest.raises(LeaseLost):
        build()
    assert scrollback(job, 1, Stream.STDOUT) == b"still here"
    assert RunHead.objects.get(run_number=run_of(job).number).past_sources == []
    assert losses(job) == []


def test_what_a_cancelled_build_has_not_stored_yet_comes_before_the_end_of_its_record(
    job: BuildJob, record_of: Callable[[BuildJob], Any]
) -> None:
    with record_of(job) as record:
        record.state("Something is to be told.")
        assert cancel_job(job, reason="Not needed.")
        record.started("docker build", ["docker", "build"]).feed("stdout", b"all of it")
    JobState(job).end_cancelled_boot_run()
    assert run_of(job).status == "cancelled"
    assert scrollback(job, 1, Stream.STDOUT) == b"all of it"
    assert losses(job) == []
    assert events(job)[-1].kind == Kind.RECORD_SEALED


def test_a_lost_connection_costs_a_cancelled_build_neither_its_output_nor_its_end(
    job: BuildJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_writer, "LAST_SECONDS", LONG_WAIT)
    monkeypatch.setattr(job_state, "LAST_SECONDS", LONG_WAIT)
    state = JobState(job)
    with recording(run_of(job), job, [], cancelled=state.cancelled) as record:
        record.started("docker build", ["docker", "build"]).feed("stdout", b"all of it")
        assert cancel_job(job, reason="Not needed.")
        state.lose()
        connection.connection.close()
    connection.connection.close()
    state.end_cancelled_boot_run()
    assert run_of(job).status == "cancelled"
    assert scrollback(job, 1, Stream.STDOUT) == b"all of it"
    assert losses(job) == []


def test_a_sweeper_ends_runs_whose_attempt_is_long_over(job: BuildJob) -> None:
    with transaction.atomic():
        workspaces.fail_attempt(job.attempt, code="internal-error", message="Oh.")
    sweeper.repair_attempts()
    assert run_of(job).status == "queued"
    long_ago = "2020-01-01T00:00:00Z"
    Attempt.objects.filter(pk=job.attempt_id).update(finished_at=long_ago)
    sweeper.repair_attempts()
    assert (run_of(job).status, run_of(job).error_code) == ("failed", "internal-error")
