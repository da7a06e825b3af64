"""Images are built and published by the real engine; every way to fail ends clean and explained."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pytest
from django.conf import settings

from builds.images.compiler import BuildError, PublishedImage
from builds.planner import plan
from registries.client import RegistryClient
from runs.agent_archive import agent_archive
from tests.builds.bench import BASE_IMAGE, PLAN, Bench, running
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
def test_a_plan_becomes_an_image_in_the_registry_and_leaves_no_name_behind(
    bench: Bench, repository: str, checkout: Path, registry: RegistryClient
) -> None:
    built = bench.build(PLAN, {"workspace": checkout})
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
    base_image = bench.base_image_id(BASE_IMAGE)
    without = Bench(tmp_path / "other", registry, docker_cli="/no/such/docker")
    name = f"{settings.REGISTRY_PUSH_REGISTRY}/{repository}:waits"
    docker("tag", built.image_id, name)
    try:
        assert built in without.compiler.built_images()
        assert name in without.compiler.names_to_push({})
    finally:
        docker("rmi", name)
    without.compiler._base_images[BASE_IMAGE] = (0.0, "another")
    without.compiler.look_at_base_images()
    assert without.base_image_id(BASE_IMAGE) == base_image
    bench.compiler.discard(built)


@pytest.mark.docker
def test_an_unchanged_plan_gives_the_same_digest_for_another_job_and_runs_nothing(
    bench: Bench, repository: str, checkout: Path
) -> None:
    step = json.dumps(["/bin/sh", "-c", f"echo ran  # {uuid4()}"])
    once = replace(PLAN, dockerfile=f"{PLAN.dockerfile}RUN {step}\n")
    digests = set()
    for _ in range(2):
        built = bench.build(once, {"workspace": checkout})
        digests.add(bench.push(built, repository).digest)
        bench.compiler.discard(built)
    assert len(digests) == 1
    assert bench.printed.count(b"ran\n") == 1


@pytest.mark.docker
def test_plans_that_begin_alike_share_what_they_begin_with(bench: Bench) -> None:
    first = running(f"echo first  # {uuid4()}")
    longer = [
        replace(first, dockerfile=f'{first.dockerfile}RUN ["/bin/echo", "then {word}"]\n')
        for word in ("one", "other")
    ]
    made = {bench.build(each).image_id for each in (first, *longer)}
    assert len(made) == 3
    assert bench.printed == b"first\nfirst\nthen one\nthen other\n"


@pytest.mark.docker
def test_settings_files_and_programs_of_a_plan_are_as_its_dockerfile_says(bench: Bench) -> None:
    dockerfile = f"""\
FROM {BASE_IMAGE}
USER root
WORKDIR /srv
ENV WORD=first
COPY extra-ca.crt svc-agent /new/folder/
RUN ["/bin/bash", "-c", "echo $WORD $PWD $(id -u) > made; stat -c '%U %a %n' /new/folder{{,/*}}"]
ENV WORD=second
USER daemon
ADD sources.tar /
RUN ["/bin/bash", "-c", "echo $WORD $PWD $(id -un); cat made; ls -d /workspace"]
ENTRYPOINT ["/new/folder/svc-agent", "boot"]
"""
    built = bench.build(replace(PLAN, sources=(), dockerfile=dockerfile), agent=uuid4().bytes)
    assert bench.printed.decode().splitlines() == [
        "root 755 /new/folder",
        "root 644 /new/folder/extra-ca.crt",
        "root 755 /new/folder/svc-agent",
        "second /srv daemon",
        "first /srv 0",
        "/workspace",
    ]
    settings_of = docker("image", "inspect", "-f", "{{json .Config}}", built.image_id)
    told = json.loads(settings_of)
    assert told["Entrypoint"] == ["/new/folder/svc-agent", "boot"]
    assert not told.get("Cmd")
    assert (told["User"], told["WorkingDir"]) == ("daemon", "/srv")
    assert "WORD=second" in told["Env"]
    assert told["Labels"]["svc.instance"] == "tests"


@pytest.mark.docker
def test_a_failing_step_is_told_with_its_exit_code_its_name_and_the_end_of_its_output(
    bench: Bench,
) -> None:
    marker, job_id = uuid4().hex, uuid4()
    with pytest.raises(BuildError) as caught:
        bench.build(running(f"echo early {marker}; echo the reason >&2; exit 42"), job_id=job_id)
    assert caught.value.code == "build-command-failed"
    first = caught.value.message.partition("\n")[0]
    assert "ended with exit code 42 at the step RUN" in first
    assert f"echo early {marker}" in first
    assert "the reason" in caught.value.message
    assert str(bench.temp_root) not in caught.value.message
    assert marker.encode() in bench.printed
    assert job_id not in {step.owner[0] for step in bench.compiler.step_containers()}
    assert not [image for image in bench.compiler.built_images() if image.owner[0] == job_id]
    assert bench.is_clean()


@pytest.mark.docker
def test_the_output_of_a_step_is_handed_on_byte_by_byte_and_stream_by_stream(
    bench: Bench,
) -> None:
    script = (
        f"cd /tmp; head -c 300000 /dev/urandom > made; cat made; sha256sum made >&2 # {uuid4()}"
    )
    told: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    class Streams(Bench):
        def feed(self, stream: str, chunk: bytes) -> None:
            told[stream] += chunk

    bench.build(running(script), log=Streams(bench.temp_root, bench.registry))
    assert len(told["stdout"]) == 300_000
    assert told["stderr"].split()[0].decode() == sha256(told["stdout"]).hexdigest()


@pytest.mark.docker
@pytest.mark.parametrize("reason", ["cancelled", "timed-out"])
def test_a_build_that_is_stopped_ends_in_the_engine_too(reason: str, bench: Bench) -> None:
    seconds, job_id = f"3{uuid4().int % 10**6:06}", uuid4()

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
        bench.build(running(f"exec sleep {seconds}"), cancelled=cancelled, job_id=job_id)
    assert caught.value.code == f"build-{reason}"
    assert time.monotonic() - started < LONG_WAIT
    assert not sleeps()
    assert job_id not in {step.owner[0] for step in bench.compiler.step_containers()}
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
    assert bench.base_image_id(BASE_IMAGE) == expected
    with pytest.raises(BuildError) as caught:
        bench.base_image_id("127.0.0.1:1/no/such:image")
    assert caught.value.code == "build-command-failed"
    assert "127.0.0.1:1/no/such:image" in caught.value.message


@pytest.mark.docker
def test_a_base_image_that_moves_on_is_noticed_by_looking(bench: Bench) -> None:
    reference = f"svc-test/base-{uuid4().hex}:latest"
    try:
        docker("tag", BASE_IMAGE, reference)
        before = bench.base_image_id(reference)
        change = ["docker", "--host", settings.DOCKER_HOST, "build", "--tag", reference, "-"]
        newer = f"FROM {BASE_IMAGE}\nLABEL newer={reference}\n".encode()
        subprocess.run(change, input=newer, capture_output=True, check=True)
        assert bench.base_image_id(reference) == before

        bench.compiler.look_at_base_images()

        after = bench.base_image_id(reference)
        assert after == docker("image", "inspect", "--format", "{{.Id}}", reference) != before
    finally:
        docker("rmi", reference)
    bench.compiler.look_at_base_images()
    with pytest.raises(BuildError):
        bench.base_image_id(reference)


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
