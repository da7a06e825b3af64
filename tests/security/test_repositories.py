"""A repository of the registry belongs to the owner who first published to it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings

from builds.build_worker_setup import job_runner
from builds.images.compiler import BuildError
from builds.pipeline.job_state import JobState
from builds.pipeline.repository import before_push, require_repository
from controlplane.errors import JobError
from registries.client import RegistryClient
from registries.services import configured_registry
from tests.conftest import OWNER, Api
from tests.factories import claim, make_job
from tests.registries.images import push_image
from tests.security.owned import STRANGER, call, require_identity
from workspaces.models import BuildJob, LeaseLost, PublishedRepository, Sandbox, Workspace

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def registry() -> Iterator[RegistryClient]:
    """A client of the registry."""
    client = configured_registry()
    yield client
    client.close()


def job_of(owner: str, repository: str) -> JobState:
    """A claimed job that is to publish to this repository."""
    job = make_job()
    Sandbox.objects.filter(attempts__jobs=job).update(owner_user_id=owner)
    BuildJob.objects.filter(pk=job.pk).update(repository=repository)
    return JobState(claim(BuildJob.objects.get(pk=job.pk)))


def claimed_by(owner: str, name: str) -> bool:
    return PublishedRepository.objects.claim("default", name, owner_user_id=owner)


@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/workspaces"])
def test_a_request_for_another_owners_repository_is_refused_with_what_to_do(
    api: Api, request_body: dict[str, Any], path: str
) -> None:
    assert claimed_by("usr_first", request_body["repository"])
    answer = api.post(path, {**request_body, "tag": "another"}, expect=409)
    assert answer.body["code"] == "repository-taken"
    assert answer.codes == {"/repository": "repository-taken"}
    assert "choose another one" in answer.body["detail"]
    assert "usr_first" not in str(answer.body)
    assert not Workspace.objects.exists()
    api.post(path, {**request_body, "ownerUserId": "usr_first"}, expect=202)
    api.post(path, {**request_body, "repository": "another/one"}, expect=202)


def test_a_repository_that_nobody_published_to_is_anybodys(
    api: Api, request_body: dict[str, Any]
) -> None:
    for owner in (OWNER, "usr_other"):
        api.post("/v1/sandboxes", {**request_body, "ownerUserId": owner}, expect=202)
    assert not PublishedRepository.objects.exists()


def test_of_many_owners_who_publish_at_once_one_gets_the_repository() -> None:
    def attempt(number: int) -> bool:
        try:
            return claimed_by(f"usr_{number}", "team/app")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(attempt, range(24)))
    assert sum(got) == 1
    owner = PublishedRepository.objects.get().owner_user_id
    assert owner == f"usr_{got.index(True)}"
    assert claimed_by(owner, "team/app")


def test_the_first_push_takes_the_repository_and_a_second_owner_pushes_nothing() -> None:
    first, second = job_of("usr_first", "team/app"), job_of("usr_second", "team/app")
    for job in (first, second):
        job.start()
        require_repository(job)
    assert not PublishedRepository.objects.exists()
    before_push(first)
    for _ in range(2):
        with pytest.raises(BuildError) as raised:
            before_push(second)
        assert raised.value.code == "repository-taken"
    before_push(first)
    assert PublishedRepository.objects.get().owner_user_id == "usr_first"


def test_a_job_that_lost_its_lease_takes_no_repository() -> None:
    job = job_of(OWNER, "team/app")
    BuildJob.objects.filter(pk=job.id).update(worker_id="worker-b")
    with pytest.raises(LeaseLost):
        before_push(job)
    assert not PublishedRepository.objects.exists()


@pytest.mark.docker
def test_a_job_for_another_owners_repository_fails_before_anything_is_built(
    registry: RegistryClient,
) -> None:
    repository = f"tests/owned-{uuid.uuid4().hex}"
    assert claimed_by("usr_first", repository)
    job = job_of("usr_second", repository)
    with pytest.raises(JobError) as raised:
        job_runner().run(job)
    assert raised.value.code == "repository-taken"
    row = BuildJob.objects.get(pk=job.id)
    assert (row.status, row.error_code) == ("failed", "repository-taken")
    assert registry.list_tags(repository) is None


def test_an_operator_hands_a_repository_over_and_frees_it(
    api: Api, request_body: dict[str, Any]
) -> None:
    assert claimed_by("usr_first", request_body["repository"])
    row = PublishedRepository.objects.get()
    staff = Client()
    staff.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    change = reverse("admin:workspaces_publishedrepository_change", args=[row.pk])
    assert staff.post(change, {"owner_user_id": OWNER}).status_code == 302
    api.post("/v1/sandboxes", request_body, expect=202)
    delete = reverse("admin:workspaces_publishedrepository_delete", args=[row.pk])
    assert staff.post(delete, {"post": "yes"}).status_code == 302
    other = {**request_body, "ownerUserId": "usr_other"}
    api.post("/v1/sandboxes", other, expect=202)


def test_behind_a_proxy_only_ones_own_repositories_are_read(api: Api, settings: Settings) -> None:
    require_identity(settings)
    name = f"tests/own-{uuid.uuid4().hex}"
    push_image(name, "one")
    routes = [f"/v1/registries/default/{each}" for each in ("tags?", "manifest?reference=one&")]
    # In the registry, but published by nobody here.
    assert read_by(api, routes, name, OWNER) == ["repository-not-found"] * 2
    assert claimed_by(OWNER, name)
    assert read_by(api, routes, name, OWNER) == ["", ""]
    assert read_by(api, routes, name, STRANGER) == ["repository-not-found"] * 2
    settings.SVC_TRUSTED_OWNER_HEADER = ""
    assert read_by(api, routes, name, STRANGER) == ["", ""]


def read_by(api: Api, routes: list[str], name: str, caller: str) -> list[str]:
    """Return the code with which each route answers a caller; "" where there is none."""
    answers = [call(api, "GET", f"{route}repository={name}", caller=caller) for route in routes]
    return [answer.body.get("code", "") for answer in answers]
