"""Images are built and published by the real engine; every way to fail ends clean and explained."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from django.conf import settings

from builds.images.compiler import BuildError, PublishedImage
from builds.planner import plan
from registries.client import RegistryClient
from runs.agent_archive import agent_archive
from tests.builds.bench import BASE_IMAGE, PLAN, Bench
from tests.builds.planner.images import CATALOGUE, extra_ca
from tests.support.waiting import LONG_WAIT
from workspaces.blueprint import Blueprint


def docker(*arguments: str) -> str:
    """Run the operator's docker and return what it printed."""
    done = subprocess.run(
        ["docker", "--host", settings.DOCKER_HOST, *arguments], capture_output=True, check=False
    )
    return (done.stdout + done.stderr).decode().strip()


def until(condition: Callable[[], bool], seconds: float = LONG_WAIT) -> bool:
    """Wait for the condition for a while and return whether it holds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.docker
@pytest.mark.parametrize("builder", ["bench", "classic"])
def test_a_plan_becomes_an_image_in_the_registry_and_leaves_no_name_behind(
    builder: str,
    repository: str,
    checkout: Path,
    registry: RegistryClient,
    request: pytest.FixtureRequest,
) -> None:
    bench: Bench = request.getfixturevalue(builder)
    built = bench.build(PLAN, {"workspace": checkout})
    assert (b"#1 [internal]" in bench.printed) == (builder == "bench")
    assert (b"\nStep 1/" in bench.printed) == (builder == "classic")
    assert docker("image", "inspect", "-f", "{{.Id}}", built.local_tag) == built.image_id
    assert built in bench.compiler.built_images()
    listing = docker(
        *("run", "--rm", "--network", "none", "--entrypoint", "/usr/bin/stat", built.local_tag),
        *("-c", "%n %u:%g %a", "/workspace", "/workspace/README", "/usr/lib/svc/agent"),
    )
    assert listing.splitlines() == [
        "/workspace 1000:1000 755",
        "/workspace/README 1000:1000 644",
        "/usr/lib/svc/agent 0:0 755",
    ]
    published = bench.push(built, repository)
    assert published.reference == f"{settings.REGISTRY_PUSH_REGISTRY}/{repository}:v1"
    assert published.digest_reference.endswith(f"/{repository}@{published.digest}")
    assert registry.head_manifest(repository, "v1") == published.digest
    assert published.digest.encode() in bench.printed
    bench.compiler.discard(built)
    bench.compiler.discard(built)
    assert built not in bench.compiler.built_images()
    assert repository not in docker("image", "ls", "--digests")
    assert bench.is_clean()


@pytest.mark.docker
def test_who_looks_at_the_images_of_the_engine_starts_no_program(
    bench: Bench, repository: str, checkout: Path, registry: RegistryClient, tmp_path: Path
) -> None:
    built = bench.build(PLAN, {"workspace": checkout})
    base_image = bench.compiler.base_image_id(BASE_IMAGE)
    without = Bench(tmp_path / "other", registry, docker_cli="/no/such/docker").compiler
    name = f"{settings.REGISTRY_PUSH_REGISTRY}/{repository}:waits"
    docker("tag", built.image_id, name)
    try:
        assert built in without.built_images()
        assert name in without.names_to_push({})
    finally:
        docker("rmi", name)
    without._base_images[BASE_IMAGE] = (0.0, "another")
    without.look_at_base_images()
    assert without.base_image_id(BASE_IMAGE) == base_image
    bench.compiler.discard(built)


@pytest.mark.docker
def test_an_unchanged_plan_gives_the_same_digest_for_another_job(
    bench: Bench, repository: str, checkout: Path
) -> None:
    digests = set()
    for _ in range(2):
        built = bench.build(PLAN, {"workspace": checkout})
        digests.add(bench.push(built, repository).digest)
        bench.compiler.discard(built)
    assert len(digests) == 1
    assert b"CACHED" in bench.printed


@pytest.mark.docker
@pytest.mark.parametrize("builder", ["bench", "classic"])
def test_a_failing_step_is_told_with_its_exit_code_its_name_and_the_end_of_its_output(
    builder: str, request: pytest.FixtureRequest
) -> None:
    bench: Bench = request.getfixturevalue(builder)
    marker = uuid4().hex
    failing = replace(
        PLAN,
        sources=(),
        dockerfile=f"FROM {BASE_IMAGE}\nRUN echo early {marker}; echo the reason >&2; exit 42\n",
    )
    before = docker("ps", "-aq", "--no-trunc").split()
    job_id = uuid4()
    with pytest.raises(BuildError) as caught:
        bench.build(failing, job_id=job_id)
    assert caught.value.code == "build-command-failed"
    assert "ended with exit code" in caught.value.message
    assert "RUN echo early" in caught.value.message.partition("\n")[0]
    assert "the reason" in caught.value.message
    assert "42" in caught.value.message
    assert str(bench.temp_root) not in caught.value.message
    assert marker.encode() in bench.printed
    for container in set(docker("ps", "-aq", "--no-trunc").split()) - set(before):
        # One of another process may be gone by now; that has no marker either.
        assert marker not in docker("inspect", container)
    assert not [image for image in bench.compiler.built_images() if image.owner[0] == job_id]
    assert bench.is_clean()


@pytest.mark.docker
@pytest.mark.parametrize("builder", ["bench", "classic"])
@pytest.mark.parametrize("reason", ["cancelled", "timed-out"])
def test_a_build_that_is_stopped_ends_in_the_engine_too(
    builder: str, reason: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bench: Bench = request.getfixturevalue(builder)
    seconds = f"3{uuid4().int % 10**6:06}"
    endless = replace(PLAN, sources=(), dockerfile=f"FROM {BASE_IMAGE}\nRUN exec sleep {seconds}\n")

    def sleeps() -> bool:
        done = subprocess.run(
            ["pgrep", "-fx", f"sleep {seconds}"], capture_output=True, check=False
        )
        return done.returncode == 0

    cancelled = threading.Event()
    if reason == "timed-out":
        bench.compiler._build_timeout = 4.0
    else:

        def cancel_once_it_runs() -> None:
            until(sleeps)
            cancelled.set()

        threading.Thread(target=cancel_once_it_runs).start()
    started = time.monotonic()
    with pytest.raises(BuildError) as caught:
        bench.build(endless, cancelled=cancelled)
    assert caught.value.code == f"build-{reason}"
    assert time.monotonic() - started < LONG_WAIT
    assert until(lambda: not sleeps())
    assert until(lambda: seconds not in docker("ps", "-a", "--no-trunc"))
    assert bench.is_clean()


@pytest.mark.docker
def test_pushes_of_one_name_at_the_same_time_get_their_own_digests(
    tmp_path: Path, registry: RegistryClient, repository: str
) -> None:
    lock = threading.Lock()

    @contextmanager
    def push_lock(name: str, *, timeout: float, cancelled: threading.Event) -> Iterator[None]:
        assert repository in name
        assert timeout > 0
        assert not cancelled.is_set()
        with lock:
            yield

    bench = Bench(tmp_path / "builds", registry, push_lock=push_lock)
    published: dict[int, PublishedImage] = {}

    def work(number: int) -> None:
        mine = replace(PLAN, sources=())
        built = bench.build(mine, agent=b"#!/bin/sh\n# %d\n" % number)
        published[number] = bench.push(built, repository)
        bench.compiler.discard(built)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({image.digest for image in published.values()}) == 3
    for number, image in published.items():
        manifest = registry.get_manifest(repository, image.digest)
        assert manifest is not None, number
    for number in range(3):
        # A build of the same content has the same digest, so it tells whose image is whose.
        built = bench.build(replace(PLAN, sources=()), agent=b"#!/bin/sh\n# %d\n" % number)
        again = bench.push(built, f"{repository}-again")
        bench.compiler.discard(built)
        assert again.digest == published[number].digest


@pytest.mark.docker
def test_a_registry_that_is_down_fails_the_push(
    tmp_path: Path, registry: RegistryClient, repository: str
) -> None:
    bench = Bench(tmp_path / "builds", registry, push_registry="127.0.0.1:1")
    built = bench.build(replace(PLAN, sources=()))
    with pytest.raises(BuildError) as caught:
        bench.push(built, repository)
    assert caught.value.code == "push-failed"
    assert "exit code 1" in caught.value.message
    bench.compiler.discard(built)
    assert repository not in docker("image", "ls")
    assert bench.is_clean()


@pytest.mark.docker
def test_a_base_image_has_an_id_or_a_clear_error(bench: Bench) -> None:
    expected = docker("image", "inspect", "-f", "{{.Id}}", BASE_IMAGE)
    assert bench.compiler.base_image_id(BASE_IMAGE) == expected
    with pytest.raises(BuildError) as caught:
        bench.compiler.base_image_id("127.0.0.1:1/no/such:image")
    assert caught.value.code == "build-command-failed"
    assert "127.0.0.1:1/no/such:image" in caught.value.message


@pytest.mark.docker
def test_a_base_image_that_moves_on_is_noticed_by_looking(bench: Bench) -> None:
    reference = f"svc-test/base-{uuid4().hex}:latest"
    try:
        docker("tag", BASE_IMAGE, reference)
        before = bench.compiler.base_image_id(reference)
        change = ["docker", "--host", settings.DOCKER_HOST, "build", "--tag", reference, "-"]
        newer = f"FROM {BASE_IMAGE}\nLABEL newer={reference}\n".encode()
        subprocess.run(change, input=newer, capture_output=True, check=True)
        assert bench.compiler.base_image_id(reference) == before

        bench.compiler.look_at_base_images()

        after = bench.compiler.base_image_id(reference)
        assert after == docker("image", "inspect", "--format", "{{.Id}}", reference) != before
    finally:
        docker("rmi", reference)
    bench.compiler.look_at_base_images()
    with pytest.raises(BuildError):
        bench.compiler.base_image_id(reference)


@pytest.mark.docker
@pytest.mark.slow
def test_a_blueprint_is_built_and_published_with_the_planners_own_files(
    bench: Bench, repository: str, checkout: Path, registry: RegistryClient
) -> None:
    blueprint = Blueprint.parse(
        {
            "sources": {"workspace": {"url": "https://host/a"}},
            "harness": {"id": "shell"},
        }
    )
    image_plan = plan(blueprint, "auto", CATALOGUE)
    checkouts = {source.id: checkout for source in image_plan.sources}
    built = bench.build(image_plan, checkouts, agent=agent_archive(), ca=extra_ca())
    published = bench.push(built, repository)
    assert registry.head_manifest(repository, published.digest) == published.digest
    owner = docker(
        *("run", "--rm", "--network", "none", "--entrypoint", "/usr/bin/stat", built.local_tag),
        *("-c", "%U %n", f"{image_plan.working_directory}/README"),
    )
    assert owner == f"workspace {image_plan.working_directory}/README"
    bench.compiler.discard(built)
