"""What is left of the containers of steps when a worker was killed goes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import docker
import pytest

from builds.images.leftovers import remove_leftovers
from tests.builds.bench import BASE_IMAGE, Bench
from tests.factories import claim, make_job
from tests.support.removal import remove_container
from tests.workspaces.conftest import docker_client as docker_client
from workspaces.runtimes.docker.build.build_steps import STEP_NAME

pytestmark = [pytest.mark.docker, pytest.mark.django_db]

Step = Callable[[UUID, int], str]


@pytest.fixture
def step(docker_client: docker.DockerClient) -> Iterator[Step]:
    """Make the container of a job's step, which is not there after the test."""
    made = []

    def make(job_id: UUID, attempt_count: int) -> str:
        name = f"{STEP_NAME}-{job_id}-{attempt_count}-1"
        made.append(docker_client.containers.create(BASE_IMAGE, ["true"], name=name))
        return name

    yield make
    for container in made:
        remove_container(container)


def test_steps_of_claims_that_are_over_go_and_others_stay(
    bench: Bench, step: Step, tmp_path: Path, instance_id: str
) -> None:
    at_work, waiting, stranger = claim(make_job()), make_job(), uuid4()
    names = {
        "at work": step(at_work.pk, at_work.attempt_count),
        "an earlier claim": step(at_work.pk, at_work.attempt_count + 1),
        "waits to be claimed again": step(waiting.pk, 1),
        "another installation": step(stranger, 1),
    }

    remove_leftovers(bench.compiler, tmp_path, instance_id=instance_id, grace=timedelta(minutes=1))

    there = {each.name for each in bench.compiler.step_containers()}
    assert {what for what, name in names.items() if name in there} == {
        "at work",
        "another installation",
    }
