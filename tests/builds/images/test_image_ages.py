"""Images that nobody needs go by age, from the registry and the engine; all others stay."""

from __future__ import annotations

import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import structlog.testing
from django.conf import settings as django_settings
from django.db import connections, transaction
from django.db.models.functions import Now

from builds.images import garbage
from builds.images.compiler import Compiler, repository_lock
from builds.images.garbage import ImageKeeper
from controlplane.database.locks import shared_advisory_lock, try_advisory_lock
from registries.client import RegistryClient
from registries.services import configured_registry
from tests.builds.bench import Bench
from tests.registries.account import docker_config
from tests.registries.fake_registry import FakeRegistry, answer, in_turn
from tests.registries.images import push_image
from tests.runs.ready import ready_attempt
from tests.support.waiting import LONG_WAIT
from workspaces import services as workspaces
from workspaces.models import Attempt, BuildJob, RuntimeInstance, Workspace

pytestmark = pytest.mark.django_db
KEEP = timedelta(days=7)
LONG_AGO = timedelta(days=8)


@pytest.fixture
def compiler(bench: Bench) -> Compiler:
    return bench.compiler


@pytest.fixture
def keeper(compiler: Compiler, registry: RegistryClient, instance_id: str) -> ImageKeeper:
    return ImageKeeper(compiler=compiler, registry=registry, instance_id=instance_id, keep=KEEP)


@dataclass
class Published:
    """A workspace that was ready once, with its image in the registry."""

    attempt: Attempt
    job: BuildJob
    digest: str

    def age(self, by: timedelta = LONG_AGO) -> None:
        """Let everything of it have happened so long ago."""
        jobs = BuildJob.objects.filter(pk=self.job.pk)
        jobs.update(finished_at=Now() - by)
        RuntimeInstance.objects.filter(attempt=self.attempt, finished_at__isnull=False).update(
            finished_at=Now() - by
        )
        Workspace.objects.filter(pk=self.attempt.workspace_id, deleted_at__isnull=False).update(
            deleted_at=Now() - by
        )


def published(repository: str, *, tag: str = "latest", plan_hash: str = "") -> Published:
    with transaction.atomic():
        attempt = ready_attempt()
    digest = push_image(repository, tag)
    job = BuildJob.objects.get(attempt=attempt)
    BuildJob.objects.filter(pk=job.pk).update(
        repository=repository, tag=tag, published_digest=digest, plan_hash=plan_hash
    )
    job.refresh_from_db()
    return Published(attempt, job, digest)


def stop(one: Published) -> None:
    with transaction.atomic():
        workspaces.stop_runtime(one.attempt, code="stopped", message="Stopped.")


def delete(one: Published) -> None:
    stop(one)
    Workspace.objects.filter(pk=one.attempt.workspace_id).update(deleted_at=Now())


def tidy(keeper: ImageKeeper) -> None:
    keeper.tidy(threading.Event())


def test_the_image_of_a_workspace_deleted_long_ago_goes_with_its_tag(
    keeper: ImageKeeper, registry: RegistryClient, repository: str
) -> None:
    one = published(repository)
    delete(one)
    one.age()
    tidy(keeper)
    assert registry.head_manifest(repository, one.digest) is None
    assert registry.head_manifest(repository, "latest") is None
    one.job.refresh_from_db()
    assert one.job.image_removed_at is not None
    assert one.job.published_digest == one.digest  # what was published stays told


def test_images_beyond_those_of_one_pass_are_looked_at_by_the_next(
    keeper: ImageKeeper,
    registry: RegistryClient,
    repository: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "IMAGES_LOOKED_AT", 1)
    images = [published(repository, tag=tag) for tag in ("a", "b", "c")]
    for one in images:
        delete(one)
        one.age()
    for left in (2, 1, 0, 0):
        tidy(keeper)
        there = [one for one in images if registry.head_manifest(repository, one.digest)]
        assert len(there) == left
    again = published(repository, tag="d")
    delete(again)
    again.age()
    tidy(keeper)
    tidy(keeper)
    assert registry.head_manifest(repository, again.digest) is None


def test_an_image_stays_until_it_was_not_needed_for_long_enough(
    keeper: ImageKeeper, registry: RegistryClient, repository: str
) -> None:
    one = published(repository)
    delete(one)
    one.age()
    Workspace.objects.update(deleted_at=Now() - timedelta(days=6))
    tidy(keeper)
    assert registry.head_manifest(repository, "latest") == one.digest


def test_a_workspace_that_runs_or_can_be_started_again_keeps_its_image(
    keeper: ImageKeeper, registry: RegistryClient, repository: str
) -> None:
    running, stopped = published(repository, tag="a"), published(repository, tag="b")
    stop(stopped)
    running.age()
    stopped.age()
    tidy(keeper)
    assert registry.head_manifest(repository, "a") == running.digest
    assert registry.head_manifest(repository, "b") == stopped.digest


def test_only_the_latest_image_of_a_workspace_is_kept_for_it(
    keeper: ImageKeeper, registry: RegistryClient, repository: str
) -> None:
    earlier, later = published(repository, tag="a"), published(repository, tag="b")
    stop(earlier)
    stop(later)
    Attempt.objects.filter(pk=later.attempt.pk).update(
        sandbox=earlier.attempt.sandbox, workspace=earlier.attempt.workspace
    )
    earlier.age()
    later.age()
    tidy(keeper)
    assert registry.head_manifest(repository, "a") is None
    assert registry.head_manifest(repository, "b") == later.digest


def test_a_job_that_launches_the_image_keeps_it(
    keeper: ImageKeeper, registry: RegistryClient, repository: str
) -> None:
    one = published(repository)
    delete(one)
    one.age()
    BuildJob.objects.filter(pk=one.job.pk).update(lease_expires_at=Now() + timedelta(minutes=1))
    tidy(keeper)
    assert registry.head_manifest(repository, "latest") == one.digest


def test_an_image_that_two_jobs_have_published_goes_only_when_neither_needs_it(
    keeper: ImageKeeper, registry: RegistryClient, repository: str
) -> None:
    gone, living = published(repository, tag="a"), published(repository, tag="b")
    BuildJob.objects.update(published_digest=gone.digest)
    delete(gone)
    gone.age()
    tidy(keeper)
    assert registry.head_manifest(repository, gone.digest) == gone.digest
    delete(living)
    living.age()
    tidy(keeper)
    assert registry.head_manifest(repository, gone.digest) is None


def test_a_manifest_that_somebody_else_has_tagged_stays(
    keeper: ImageKeeper, registry: RegistryClient, repository: str
) -> None:
    one = published(repository)
    assert registry.copy(repository, one.digest, repository, "mine-for-ever")
    delete(one)
    one.age()
    for _ in range(2):
        tidy(keeper)
    assert registry.head_manifest(repository, "mine-for-ever") == one.digest


def test_what_others_have_pushed_is_never_looked_at(
    keeper: ImageKeeper, registry: RegistryClient, repository: str
) -> None:
    one = published(repository)
    strange = push_image(repository, "strange")
    delete(one)
    one.age()
    tidy(keeper)
    assert registry.list_tags(repository) == ["strange"]
    assert registry.head_manifest(repository, "strange") == strange


@pytest.mark.django_db(transaction=True)
def test_nothing_is_removed_from_a_repository_while_a_job_publishes_into_it(
    keeper: ImageKeeper, registry: RegistryClient, repository: str
) -> None:
    one = published(repository)
    delete(one)
    one.age()
    never = threading.Event()
    shared, go_on = threading.Event(), threading.Event()

    def publish() -> None:
        with shared_advisory_lock(repository_lock(repository), timeout=LONG_WAIT, cancelled=never):
            shared.set()
            go_on.wait(LONG_WAIT)
        connections.close_all()

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        assert shared.wait(LONG_WAIT)
        tidy(keeper)
        assert registry.head_manifest(repository, "latest") == one.digest
    finally:
        go_on.set()
        publisher.join(LONG_WAIT)
    tidy(keeper)
    assert registry.head_manifest(repository, "latest") is None


@pytest.mark.django_db(transaction=True)
def test_jobs_share_a_repository_and_nobody_has_it_alone_meanwhile() -> None:
    never, inside = threading.Event(), threading.Barrier(3)
    held: list[bool] = []

    def share() -> None:
        with shared_advisory_lock("images:x", timeout=LONG_WAIT, cancelled=never):
            inside.wait(LONG_WAIT)
            inside.wait(LONG_WAIT)
        connections.close_all()

    sharers = [threading.Thread(target=share) for _ in range(2)]
    for thread in sharers:
        thread.start()
    inside.wait(LONG_WAIT)  # both have it at the same time
    with try_advisory_lock("images:x") as alone:
        held.append(alone)
    inside.wait(LONG_WAIT)
    for thread in sharers:
        thread.join(LONG_WAIT)
    with try_advisory_lock("images:x") as alone:
        held.append(alone)
    assert held == [False, True]


def test_a_registry_that_deletes_nothing_is_told_once_and_left_alone(
    compiler: Compiler, repository: str, instance_id: str
) -> None:
    one = published(repository)
    delete(one)
    one.age()
    fake = FakeRegistry()
    fake.behaviour = in_turn(answer(200, b'{"name": "x", "tags": []}'), answer(405, b"{}"))
    client = RegistryClient(fake.url)
    keeper = ImageKeeper(compiler=compiler, registry=client, instance_id=instance_id, keep=KEEP)
    try:
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                tidy(keeper)
        deletions = [asked for asked in fake.requests if asked[0] == "DELETE"]
    finally:
        client.close()
        fake.close()
    assert [entry["event"] for entry in logs].count("registry_deletes_nothing") == 1
    assert len(deletions) == 1
    one.job.refresh_from_db()
    assert one.job.image_removed_at is None


def test_a_registry_that_is_away_changes_nothing_and_is_asked_again(
    compiler: Compiler, registry: RegistryClient, repository: str, instance_id: str
) -> None:
    one = published(repository)
    delete(one)
    one.age()
    away = RegistryClient("http://127.0.0.1:1")
    keeper = ImageKeeper(compiler=compiler, registry=away, instance_id=instance_id, keep=KEEP)
    tidy(keeper)
    away.close()
    one.job.refresh_from_db()
    assert one.job.image_removed_at is None
    keeper.registry = registry
    tidy(keeper)
    assert registry.head_manifest(repository, "latest") is None


# ---------------------------------------------------------------- the engine


def docker(*arguments: str, config: str = "") -> str:
    program = [django_settings.DOCKER_CLI, "--host", django_settings.DOCKER_HOST]
    program += ["--config", config] if config else []
    return subprocess.run(
        [*program, *arguments], check=True, capture_output=True, text=True, timeout=LONG_WAIT
    ).stdout


@pytest.fixture
def in_engine(tmp_path: Path, repository: str, instance_id: str) -> Iterator[Published]:
    """A published image that the engine has by its digest, as a launch leaves it."""
    (tmp_path / "mark").write_text(uuid.uuid4().hex)
    (tmp_path / "Dockerfile").write_text('FROM scratch\nCOPY mark /mark\nCMD ["/mark"]\n')
    name = f"{django_settings.REGISTRY_PUSH_REGISTRY}/{repository}"
    label = f"svc.instance={instance_id}"
    docker("build", "--quiet", "--label", label, "--tag", f"{name}:latest", str(tmp_path))
    config = docker_config(tmp_path / "docker")
    docker("push", "--quiet", f"{name}:latest", config=config)
    attempt = ready_attempt()
    job = BuildJob.objects.get(attempt=attempt)
    client = configured_registry()
    digest = client.head_manifest(repository, "latest")
    client.close()
    assert digest
    docker("rmi", f"{name}:latest")
    docker("pull", "--quiet", f"{name}@{digest}", config=config)
    BuildJob.objects.filter(pk=job.pk).update(
        repository=repository, tag="latest", published_digest=digest
    )
    yield Published(attempt, job, digest)
    with suppress(subprocess.CalledProcessError):  # it is gone
        docker("rmi", "--force", f"{name}@{digest}")


def is_there(published: Published, compiler: Compiler, instance_id: str) -> bool:
    # Other tests of this process have left images of the same installation.
    pulled = compiler.pulled_images({"svc.instance": instance_id})
    return published.digest in [image.digest for image in pulled]


@pytest.mark.docker
def test_the_engine_keeps_an_image_while_it_is_needed_and_no_longer(
    keeper: ImageKeeper, compiler: Compiler, in_engine: Published, instance_id: str
) -> None:
    stop(in_engine)
    in_engine.age()
    tidy(keeper)
    assert is_there(in_engine, compiler, instance_id)

    delete(in_engine)
    in_engine.age()
    other = ImageKeeper(
        compiler=compiler, registry=keeper.registry, instance_id="another", keep=KEEP
    )
    other._refuses = True  # the registry is not what this is about
    tidy(other)
    assert is_there(in_engine, compiler, instance_id)  # a stranger's, for that one

    tidy(keeper)
    assert not is_there(in_engine, compiler, instance_id)


@pytest.mark.docker
def test_the_engine_keeps_an_image_that_a_container_is_made_of(
    keeper: ImageKeeper, compiler: Compiler, in_engine: Published, instance_id: str
) -> None:
    delete(in_engine)
    in_engine.age()
    repository = BuildJob.objects.get(pk=in_engine.job.pk).repository
    name = f"{django_settings.REGISTRY_PUSH_REGISTRY}/{repository}@{in_engine.digest}"
    container = docker("create", name).strip()
    try:
        tidy(keeper)
        assert is_there(in_engine, compiler, instance_id)
    finally:
        docker("rm", container)
    tidy(keeper)
    assert not is_there(in_engine, compiler, instance_id)
