"""What whole jobs leave in the record of their boot run: the real engine, the real agent."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from builds.build_worker_setup import job_runner
from builds.pipeline.job_slots import BuildSlotNeeded, JobSlots, Lane
from builds.pipeline.job_state import JobState
from controlplane.errors import JobError
from runs.agent.record.frames import Kind
from runs.models import Run, RunEvent, RunLoss, RunProcess
from runs.record.verify import verify_run
from tests.factories import claim, make_job
from workspaces.models import BuildJob

pytestmark = [pytest.mark.docker, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _own_folder(settings: Settings, tmp_path: Path) -> None:
    settings.SVC_DATA_DIR = tmp_path / "data"


def fail(spec: dict[str, Any]) -> tuple[BuildJob, Run]:
    """Run a job to its failure; return its row and its boot run."""
    job = make_job(spec=spec)
    with pytest.raises(JobError):
        job_runner().run(JobState(claim(job)))
    job.refresh_from_db()
    return job, Run.objects.get(pk=job.attempt.run_id)


def output(run: Run) -> bytes:
    """All output in the record, in order."""
    chunks = RunEvent.objects.filter(run_number=run.number, kind=Kind.IO_CHUNK)
    return b"".join(bytes(chunk.body) for chunk in chunks.order_by("sequence"))


def programs(run: Run) -> list[str]:
    """The names of the run's leaders."""
    leaders = RunProcess.objects.filter(run_number=run.number, leader=True)
    return list(leaders.order_by("process_number").values_list("name", flat=True))


def assert_whole(run: Run) -> None:
    """Fail unless the record has ended, lacks nothing and is what was stored."""
    assert run.status == "failed"
    assert not RunLoss.objects.filter(run_number=run.number).exists()
    assert verify_run(run).ok


def test_a_build_that_fails_has_its_output_and_its_error_in_the_record() -> None:
    word = uuid.uuid4().hex
    install = {"id": "custom", "install": f"echo {word}; exit 7", "command": ["x"]}
    job, run = fail({"harness": install})
    assert word.encode() in output(run)
    assert programs(run)[-1].startswith("step ")
    assert (run.error_code, run.error_message) == (job.error_code, job.error_message)
    assert_whole(run)


def test_a_boot_that_fails_has_its_last_words_in_the_record_although_its_container_is_gone() -> (
    None
):
    word = uuid.uuid4().hex
    setup = [{"id": "prepare", "run": f"echo {word}; exit 4"}]
    spec = {"harness": {"id": "shell"}, "lifecycle": {"setup": setup}}
    job, run = fail(spec)
    assert job.error_code == "step-failed"
    assert word.encode() in output(run)
    assert programs(run)[-1] == "prepare"
    assert_whole(run)


def test_a_base_image_is_pulled_in_a_build_slot_and_the_pull_is_in_the_record(
    settings: Settings,
) -> None:
    settings.SVC_BASE_IMAGES = {"debian": f"127.0.0.1:1/{uuid.uuid4().hex}"}
    job = make_job()
    run = Run.objects.get(pk=job.attempt.run_id)
    slot = JobSlots(start=1, build=0).try_acquire(Lane.START)

    with pytest.raises(BuildSlotNeeded):
        job_runner().run(JobState(claim(job), slot))

    assert programs(run) == []
    job.refresh_from_db()
    assert (job.status, job.lane) == ("queued", "build")

    slot = JobSlots(start=1, build=1).try_acquire(Lane.START)
    with pytest.raises(JobError, match=r"The base image 127\.0\.0\.1:1/") as raised:
        job_runner().run(JobState(claim(job), slot))

    assert raised.value.code == "build-command-failed"
    assert programs(run) == ["docker pull"]
    run.refresh_from_db()
    assert_whole(run)


def test_a_plan_that_cannot_be_built_ends_the_run_with_the_reason(settings: Settings) -> None:
    settings.SVC_BASE_IMAGES = {"debian": settings.SVC_BASE_IMAGES["debian"]}
    _, run = fail({"harness": {"id": "shell"}, "target": {"os": {"family": "arch"}}})
    assert output(run) == b""
    assert run.error_code == "unsupported-os"
    assert_whole(run)
