"""What one job writes, in order: every way to fail, and failures that are written only in part."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections
from pytest_django.fixtures import Settings

from builds import job_sweeper as sweeper
from builds.build_worker_setup import job_runner
from builds.pipeline.job_state import JobState
from controlplane.errors import JobError
from controlplane.work.models import Heartbeat
from tests.conftest import Api
from tests.factories import claim, make_job
from tests.scm.conftest import git
from tests.stack.free_ports import free_port
from tests.stack.worker_process import WorkerProcess, dead_letters, eventually, messages_in
from tests.support.waiting import LONG_WAIT
from workspaces.lifecycle.build_messages import BUILD_REQUESTED
from workspaces.models import Attempt, BuildJob, Fence, RuntimeInstance, Sandbox
from workspaces.runtimes.configured import configured_adapter
from workspaces.runtimes.docker.build.build_steps import STEP_NAME

pytestmark = [pytest.mark.docker, pytest.mark.django_db(transaction=True)]

Spec = dict[str, Any]


@pytest.fixture(autouse=True)
def _permissive(settings: Settings, tmp_path: Path) -> None:
    """Work in a folder of the test, and allow the sources that the tests serve themselves."""
    settings.SVC_DATA_DIR = tmp_path / "data"
    settings.SVC_SOURCE_ALLOW_FILE = True
    settings.SVC_SOURCE_ALLOW_PRIVATE = True


def installing(script: str) -> Spec:
    """Return a blueprint whose build runs a script."""
    return {"harness": {"id": "custom", "install": script, "command": ["x"]}}


def from_source(url: str, ref: str | None = None) -> Spec:
    """Return a blueprint with a source."""
    source = {"url": url, **({"ref": ref} if ref else {})}
    return {"harness": {"id": "shell"}, "sources": {"workspace": source}}


def run(job: BuildJob) -> BuildJob:
    """Run a job as the worker that claimed it, to a failure; return its row."""
    with pytest.raises(JobError) as raised:
        job_runner().run(JobState(claim(job)))
    job.refresh_from_db()
    assert job.error_code == raised.value.code
    return job


def rows(job: BuildJob) -> tuple[BuildJob, RuntimeInstance, Attempt]:
    """Return the three rows that a failure is written to."""
    job = BuildJob.objects.select_related("attempt__runtime").get(pk=job.pk)
    return job, job.attempt.runtime, job.attempt


def assert_failed_everywhere(job: BuildJob, code: str, *words: str) -> None:
    """Fail unless the three failure writes all say the same."""
    for row in rows(job):
        assert row.status == "failed"
        assert row.error_code == code
        assert row.finished_at is not None
        for word in words:
            assert word in row.error_message
    assert Sandbox.objects.get(attempts__jobs=job).status == "failed"


# ---------------------------------------------------------------- creation


def test_a_request_leaves_three_queued_rows_and_one_message(
    api: Api, request_body: dict[str, Any], build_queue: str
) -> None:
    waiting = messages_in(BUILD_REQUESTED.topology().queue)

    answer = api.post("/v1/sandboxes", request_body).body

    job = BuildJob.objects.select_related("attempt__sandbox").get(pk=answer["jobId"])
    assert (job.status, job.attempt.status, job.attempt.sandbox.status) == ("queued",) * 3
    assert answer["status"] == "queued"
    assert (job.attempt_count, job.worker_id, job.claimed_at) == (0, "", None)
    body = BUILD_REQUESTED.to_bytes(job.pk)
    arrived = set(messages_in(BUILD_REQUESTED.topology().queue)) - set(waiting)
    assert arrived == {(answer["jobId"], body)}


# ---------------------------------------------------------------- the planner's reasons


@pytest.mark.parametrize(
    ("reason", "spec"),
    [
        ("unsupported-os", {"harness": {"id": "shell"}, "target": {"os": {"family": "arch"}}}),
        (
            "unsupported-harness",
            {"harness": {"id": "opencode"}, "target": {"os": {"family": "alpine"}}},
        ),
        (
            "unsupported-package",
            {"harness": {"id": "shell"}, "tooling": {"packages": [{"id": "no-name-"}]}},
        ),
        (
            "unsupported-runtime-requirement",
            {"harness": {"id": "shell"}, "target": {"runtime": {"family": "k8s"}}},
        ),
    ],
)
def test_what_the_planner_does_not_support_is_the_jobs_error_code(
    settings: Settings, reason: str, spec: Spec
) -> None:
    settings.SVC_BASE_IMAGES = {
        family: settings.SVC_BASE_IMAGES[family] for family in ("debian", "alpine")
    }

    job = run(make_job(spec=spec))

    assert_failed_everywhere(job, reason)
    assert job.published_digest == ""


# ---------------------------------------------------------------- sources


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """The URL of a small repository on this disk."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return f"file://{folder}"


def test_a_ref_that_is_missing(repository: str) -> None:
    job = run(make_job(spec=from_source(repository, "v9")))
    assert_failed_everywhere(job, "source-ref-not-found", "v9")


@pytest.mark.parametrize("ref", ["0" * 40])
def test_a_commit_that_is_missing(repository: str, ref: str) -> None:
    job = run(make_job(spec=from_source(repository, ref)))
    assert_failed_everywhere(job, "source-ref-not-found")


def test_a_url_without_a_repository(tmp_path: Path) -> None:
    job = run(make_job(spec=from_source(f"file://{tmp_path}")))
    assert_failed_everywhere(job, "source-unreachable", "no git repository")


def test_a_host_that_does_not_exist() -> None:
    job = run(make_job(spec=from_source("https://nowhere.invalid/a.git")))
    assert_failed_everywhere(job, "source-unreachable", "nowhere.invalid")


def test_a_port_where_nobody_listens() -> None:
    job = run(make_job(spec=from_source(f"http://127.0.0.1:{free_port()}/a.git")))
    assert_failed_everywhere(job, "source-unreachable")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/a.git", "https://169.254.169.254/a.git", "http://localhost/a.git"]
)
def test_an_address_that_the_operator_does_not_allow(settings: Settings, url: str) -> None:
    settings.SVC_SOURCE_ALLOW_PRIVATE = False
    job = run(make_job(spec=from_source(url)))
    assert_failed_everywhere(job, "source-url-forbidden")


def test_a_file_that_the_operator_does_not_allow(settings: Settings, repository: str) -> None:
    settings.SVC_SOURCE_ALLOW_FILE = False
    job = run(make_job(spec=from_source(repository)))
    assert_failed_everywhere(job, "source-url-forbidden", "file URLs")


# ---------------------------------------------------------------- build, push, launch


def test_a_build_that_exits_with_a_code_tells_it_and_the_end_of_its_output() -> None:
    job = run(make_job(spec=installing("echo the disk is made of cheese; exit 7")))
    assert_failed_everywhere(job, "build-command-failed", "exit code", "made of cheese")


def step_of(job: BuildJob) -> int | None:
    """Return the process id of the ``docker start`` of a job's step."""
    name = f"{STEP_NAME}-{job.pk}-".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"start" in words and any(word.startswith(name) for word in words):
                return int(entry.name)
    return None


def test_a_build_that_is_killed_names_the_signal() -> None:
    job = make_job(spec=installing(f"echo {uuid.uuid4()}; sleep 60"))
    claimed, raised = claim(job), []

    def work() -> None:
        try:
            job_runner().run(JobState(claimed))
        except JobError as error:
            raised.append(error.code)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    program = eventually(lambda: step_of(job), what="a step")
    assert program is not None
    os.kill(program, signal.SIGKILL)
    thread.join(LONG_WAIT)

    assert raised == ["build-command-failed"]
    assert_failed_everywhere(job, "build-command-failed", "SIGKILL")


def test_a_build_context_that_cannot_be_written(settings: Settings, tmp_path: Path) -> None:
    job = make_job(spec=installing(f"echo {uuid.uuid4()}"))
    runner = job_runner()
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")

    with pytest.raises(JobError):
        replace(runner, builder=replace(runner.builder, temp_root=blocked / "builds")).run(
            JobState(claim(job))
        )

    assert_failed_everywhere(job, "build-write-context-failed")


def test_a_registry_that_takes_nothing(settings: Settings) -> None:
    settings.REGISTRY_PUSH_REGISTRY = f"127.0.0.1:{free_port()}"
    job = run(make_job(spec=installing(f"echo {uuid.uuid4()}")))
    assert_failed_everywhere(job, "push-failed")
    assert job.published_digest == ""


def test_a_failing_step_tells_its_name_its_end_and_its_output(
    plain: Spec, left_nothing: Callable[[BuildJob], None]
) -> None:
    steps = [{"id": "first", "run": "true"}, {"id": "fetch the data", "run": "echo gone; exit 4"}]
    job = run(make_job(spec={**plain, "lifecycle": {"setup": steps}}))
    assert_failed_everywhere(job, "step-failed", "fetch the data", "exit code 4", "gone")
    assert job.published_digest.startswith("sha256:")
    left_nothing(job)


def test_an_engine_that_does_not_answer(settings: Settings, plain: Spec) -> None:
    job = make_job(spec=plain)
    runner = job_runner()
    settings.DOCKER_HOST = f"tcp://127.0.0.1:{free_port()}"
    broken = replace(runner, launcher=job_runner().launcher)

    with pytest.raises(JobError):
        broken.run(JobState(claim(job)))

    assert_failed_everywhere(job, "adapter-unavailable")
    job.refresh_from_db()
    assert "127.0.0.1" not in job.error_message


@pytest.fixture
def plain() -> Spec:
    """The blueprint that most tests share, so that its layers are there."""
    return {"harness": {"id": "shell"}}


@pytest.fixture
def left_nothing(settings: Settings) -> Callable[[BuildJob], None]:
    """Return a check that nothing of a job is left in the engine or on the disk."""

    def check(job: BuildJob) -> None:
        assert job_runner().launcher.adapter.observe(job.attempt.run_id) is None
        assert list((settings.SVC_DATA_DIR / "builds").iterdir()) == []

    return check


# ---------------------------------------------------------------- failures written in part


@contextmanager
def broken_write(table: str, status: str = "failed") -> Iterator[None]:
    """Make the database refuse to write one status into one table."""
    name = f"refuse_{table}"
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'this write is broken'; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER {name} BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW"
            f" WHEN (NEW.status = '{status}') EXECUTE FUNCTION {name}()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TRIGGER {name} ON {table}")
            cursor.execute(f"DROP FUNCTION {name}()")


FAILING_STEP = {
    "harness": {"id": "shell"},
    "lifecycle": {"setup": [{"id": "break", "run": "exit 1"}]},
}


def fail_in_part(table: str, spec: Spec = FAILING_STEP) -> BuildJob:
    """Let a job fail while one of the three failure writes cannot be made."""
    job = make_job(spec=spec)
    with broken_write(table), pytest.raises(JobError):
        job_runner().run(JobState(claim(job)))
    return job


def test_a_broken_write_to_the_attempt_does_not_stop_the_others_and_is_repaired() -> None:
    job = fail_in_part("workspaces_attempt")
    assert [row.status for row in rows(job)] == ["failed", "failed", "running"]

    sweeper.repair_attempts()

    assert_failed_everywhere(job, "step-failed", "break")


def test_a_broken_write_to_the_runtime_does_not_stop_the_others_and_is_repaired() -> None:
    job = fail_in_part("workspaces_runtimeinstance")
    assert [row.status for row in rows(job)] == ["failed", "pending", "failed"]

    sweeper.repair_attempts()

    assert_failed_everywhere(job, "step-failed", "break")


@pytest.mark.parametrize(
    ("spec", "status", "code"),
    [
        pytest.param(installing("exit 7"), "running", "build-command-failed", id="build"),
        pytest.param(FAILING_STEP, "succeeded", "step-failed", id="launch"),
    ],
)
def test_a_broken_write_to_the_job_does_not_stop_the_others_and_is_repaired(
    spec: Spec, status: str, code: str
) -> None:
    job = fail_in_part("workspaces_buildjob", spec)
    assert [row.status for row in rows(job)] == [status, "failed", "failed"]
    BuildJob.objects.give_back(claim_of(job))
    before = job_runner()
    # Nothing is built or launched any more: this runner could not even begin with either.
    idle = replace(before, catalogue=replace(before.catalogue, base_images={}))

    with pytest.raises(JobError):
        idle.run(JobState(claim(job, "worker-b")))

    assert_failed_everywhere(job, code)


NOT_THERE = "localhost:1/guard:1"
"""An image that no registry has, so that no rules can be kept."""


def test_nothing_is_built_with_a_network_while_the_machine_is_not_guarded(
    settings: Settings,
) -> None:
    settings.SVC_NETWORK_GUARD = "on"
    settings.SVC_NETWORK_GUARD_IMAGE = NOT_THERE
    job = run(make_job(spec=installing("true")))
    assert (job.error_code, job.published_digest) == ("network-not-guarded", "")


def test_no_workspace_is_given_a_network_while_the_machine_is_not_guarded() -> None:
    before = job_runner()
    guard = configured_adapter().network_guard(image=NOT_THERE)
    unguarded = replace(before, launcher=replace(before.launcher, require_isolation=guard.require))
    network = {"harness": {"id": "shell"}, "runtime": {"network": {"outbound": True}}}
    job = make_job(spec=network)
    with pytest.raises(JobError) as caught:
        unguarded.run(JobState(claim(job)))
    assert caught.value.code == "network-not-guarded"
    assert unguarded.launcher.adapter.observe(job.attempt.run_id) is None


def claim_of(job: BuildJob) -> Fence:
    """Return the claim that the job's row shows."""
    job.refresh_from_db()
    return job.fence


def test_an_error_of_ours_is_told_without_its_text() -> None:
    job = make_job()
    with broken_write("workspaces_attempt", status="running"), pytest.raises(DatabaseError):
        job_runner().run(JobState(claim(job)))

    assert_failed_everywhere(job, "internal-error")
    job.refresh_from_db()
    assert "this write is broken" not in job.error_message


# ---------------------------------------------------------------- a real worker


def test_a_worker_does_as_many_jobs_as_it_is_told_and_leaves_in_order(
    build_queue: str, tmp_path: Path
) -> None:
    done = make_job()
    BuildJob.objects.filter(pk=done.pk).update(
        status="failed", error_message="before", finished_at="2026-01-01T00:00:00Z"
    )
    unsupported = {"harness": {"id": "shell"}, "target": {"runtime": {"family": "k8s"}}}
    jobs = [make_job(spec=unsupported) for _ in range(2)]
    for job in [done, *jobs]:
        BUILD_REQUESTED.publish(job.pk)

    worker = WorkerProcess(tmp_path / "log", max_jobs=2)

    assert worker.wait() == 0, worker.told
    for job in jobs:
        assert_failed_everywhere(job, "unsupported-runtime-requirement")
    # The broker has them a moment after the worker has let go.
    wanted = {str(job.pk) for job in jobs}
    letters = eventually(
        lambda: found if wanted <= (found := dead_letters()).keys() else {},
        what="the failed jobs are dead letters",
    )
    # What is not claimable is done with: the worker acknowledges it and changes nothing.
    assert str(done.pk) not in letters
    assert messages_in(BUILD_REQUESTED.topology().queue) == []
    done.refresh_from_db()
    assert (done.attempt_count, done.error_message) == (0, "before")
    assert not Heartbeat.objects.exists()
