"""The endpoints of the registry against the real one."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
import requests
from pytest_django.fixtures import Settings

from registries.client import MANIFEST_TYPES, RegistryClient
from tests.conftest import Api
from tests.registries.account import BASIC
from tests.registries.fake_registry import FakeRegistry
from tests.registries.images import (
    BASE_URL,
    DOCKER_MANIFEST,
    GONE,
    OCI_INDEX,
    OCI_MANIFEST,
    push_image,
    put_manifest,
)
from tests.support.waiting import LONG_WAIT

PATH = "/v1/registries/default"
ROUTES = ["", "/ping", "/extensions", "/tags?repository=a", "/manifest?repository=a&reference=b"]
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"


def manifest_path(repository: str, reference: str) -> str:
    return f"{PATH}/manifest?repository={quote(repository, '')}&reference={quote(reference, '')}"


def tags_path(repository: str) -> str:
    return f"{PATH}/tags?repository={quote(repository, '')}"


def stored(repository: str, reference: str) -> requests.Response:
    """Return a manifest as the registry has it."""
    accept = {"Accept": ", ".join(MANIFEST_TYPES)}
    url = f"{BASE_URL}/v2/{repository}/manifests/{reference}"
    return requests.get(url, headers=accept, auth=BASIC, timeout=LONG_WAIT)


def test_what_is_configured_is_shown_without_asking_the_registry(
    api: Api, settings: Settings
) -> None:
    settings.REGISTRY_BASE_URL = "https://nobody.invalid:5000/base"
    settings.REGISTRY_PUSH_REGISTRY = "registry.example:5000"
    settings.REGISTRY_USERNAME = settings.REGISTRY_PASSWORD = ""
    assert api.get(PATH).body == {
        "name": "default",
        "baseUrl": "https://nobody.invalid:5000/base",
        "pushRegistry": "registry.example:5000",
        "hasBasicAuth": False,
    }


def test_that_there_is_an_account_is_shown_and_nothing_of_it(api: Api, settings: Settings) -> None:
    settings.REGISTRY_USERNAME, settings.REGISTRY_PASSWORD = "joe", "hunter2"
    settings.REGISTRY_BASE_URL = "https://ann:hunter3@registry.example/base?token=hunter4#x"
    shown = api.get(PATH)
    assert shown.body["hasBasicAuth"] is True
    assert shown.body["baseUrl"] == "https://registry.example/base"
    for secret in (b"joe", b"ann", b"hunter"):
        assert secret not in shown.content


def test_another_name_of_the_registry_is_the_only_one(api: Api, settings: Settings) -> None:
    settings.REGISTRY_NAME = "main"
    assert api.get("/v1/registries/main/ping").body == {"name": "main", "reachable": True}
    assert api.get(PATH, expect=404).body["code"] == "registry-not-found"


@pytest.mark.parametrize("route", [*ROUTES, "/tags?wrong=1", "/manifest"])
@pytest.mark.parametrize("name", ["other", "Default", "default%20", "%2e%2e", "%00", "x" * 500])
def test_an_unknown_registry_is_absent_whatever_is_asked_of_it(
    api: Api, fake: FakeRegistry, settings: Settings, name: str, route: str
) -> None:
    settings.REGISTRY_BASE_URL = fake.url
    answer = api.get(f"/v1/registries/{name}{route}", expect=404)
    assert answer.body["code"] == "registry-not-found"
    assert answer.codes == {"registryId": "unknown-registry"}
    assert fake.requests == []


def test_the_registry_answers(api: Api) -> None:
    assert api.get(f"{PATH}/ping").body == {"name": "default", "reachable": True}


def test_a_registry_without_discovery_has_no_extensions(api: Api) -> None:
    assert api.get(f"{PATH}/extensions").body == {"extensions": []}


def test_all_tags_are_listed_in_order(api: Api, repository: str) -> None:
    push_image(repository, "v1")
    content = stored(repository, "v1").json()
    names = [*(f"t{number:03}" for number in range(150)), "A.b-c_d", "_x", "z" * 128]
    for name in reversed(names):
        put_manifest(repository, name, DOCKER_MANIFEST, content)
    expected = {"repository": repository, "tags": sorted([*names, "v1"])}
    assert api.get(tags_path(repository)).body == expected
    assert api.get(tags_path(f" //{repository}/ ")).body == expected


def test_a_repository_that_is_not_there_or_has_lost_its_tags_has_none(
    api: Api, client: RegistryClient, repository: str
) -> None:
    expected = {"repository": repository, "tags": []}
    assert api.get(tags_path(repository)).body == expected
    client.delete_manifest(repository, push_image(repository, "v1"))
    assert (
        requests.get(
            f"{BASE_URL}/v2/{repository}/tags/list", auth=BASIC, timeout=LONG_WAIT
        ).status_code
        == 200
    )
    assert api.get(tags_path(repository)).body == expected


@pytest.mark.parametrize("media_type", [DOCKER_MANIFEST, OCI_MANIFEST])
def test_an_image_is_shown_by_tag_and_by_digest(api: Api, repository: str, media_type: str) -> None:
    digest = push_image(repository, "v1", media_type)
    expected = {
        "repository": repository,
        "digest": digest,
        "contentType": media_type,
        "manifest": stored(repository, "v1").json(),
    }
    for reference in ("v1", digest):
        shown = api.get(manifest_path(repository, reference)).body
        assert shown == {**expected, "reference": reference}
    assert api.get(manifest_path(f"/{repository}/", "v1")).body["repository"] == repository


@pytest.mark.parametrize(("media_type", "child_type"), [
    (OCI_INDEX, OCI_MANIFEST), (DOCKER_LIST, DOCKER_MANIFEST),
])  # fmt: skip
def test_a_list_of_images_is_shown_as_it_is_stored(
    api: Api, repository: str, media_type: str, child_type: str
) -> None:
    child = push_image(repository, "child", child_type)
    index = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "manifests": [
            {
                "mediaType": child_type,
                "digest": child,
                "size": len(stored(repository, child).content),
                "platform": {"architecture": "amd64", "os": "linux"},
            }
        ],
    }
    digest = put_manifest(repository, "all", media_type, index)
    for reference in ("all", digest):
        shown = api.get(manifest_path(repository, reference)).body
        assert (shown["digest"], shown["contentType"]) == (digest, media_type)
        assert shown["manifest"] == index


def test_what_is_in_a_manifest_is_shown_member_for_member(api: Api, repository: str) -> None:
    push_image(repository, "v1", OCI_MANIFEST)
    notes = {"some_name": "ünï\u2028", "a/b": "", "null": "\x00", "camelCase": "<script>"}
    content = {**stored(repository, "v1").json(), "annotations": notes, "x": [None, 1e3, 2**70]}
    put_manifest(repository, "v2", OCI_MANIFEST, content)
    assert api.get(manifest_path(repository, "v2")).body["manifest"] == content


def test_an_artifact_that_belongs_to_an_image_is_shown(api: Api, repository: str) -> None:
    """As signatures and bills of materials are kept today (OCI image specification 1.1)."""
    subject = push_image(repository, "v1", OCI_MANIFEST)
    content = {
        **stored(repository, "v1").json(),
        "artifactType": "application/vnd.example.sbom.v1+json",
        "subject": {"mediaType": OCI_MANIFEST, "digest": subject, "size": 1},
    }
    digest = put_manifest(repository, "sbom", OCI_MANIFEST, content)
    shown = api.get(manifest_path(repository, digest)).body
    assert (shown["contentType"], shown["manifest"]) == (OCI_MANIFEST, content)


def test_an_unknown_repository_is_told_apart_from_an_unknown_tag_or_digest(
    api: Api, repository: str
) -> None:
    for reference in ("v1", GONE):
        answer = api.get(manifest_path(repository, reference), expect=404)
        assert answer.body["code"] == "repository-not-found"
        assert answer.codes == {"repository": "unknown-repository"}
    push_image(repository, "v1")
    for reference in ("v2", GONE, "sha512:" + "0" * 128):
        answer = api.get(manifest_path(repository, reference), expect=404)
        assert answer.body["code"] == "manifest-not-found"
        assert answer.codes == {"reference": "unknown-reference"}


@pytest.mark.parametrize("name", [
    "A", "a//b", "a/../b", "../a", "..", ".", "a b", "a?x=1", "a#b", "a%2fb", "-a", "a/-b", "ü",
    "a/manifests/b?", "a@sha256", "http://elsewhere/a", "a\\b", "///",
])  # fmt: skip
def test_a_malformed_repository_is_a_fault_and_never_asked_for(
    api: Api, fake: FakeRegistry, settings: Settings, name: str
) -> None:
    settings.REGISTRY_BASE_URL = fake.url
    for path in (tags_path(name), manifest_path(name, "v1")):
        answer = api.get(path, expect=400)
        assert answer.body["code"] == "validation-failed"
        assert answer.codes == {"repository": "invalid-format"}
    assert fake.requests == []


@pytest.mark.parametrize("name", [
    ".a", "-a", "a/b", "../b", "a b", "a" * 129, "a:b", "sha256:12", "sha256:" + "A" * 64,
    "md5:" + "0" * 32, "a?b", "a#", "a%2e", "sha256:" + "0" * 65, "v1,v2",
])  # fmt: skip
def test_a_malformed_reference_is_a_fault_and_never_asked_for(
    api: Api, fake: FakeRegistry, settings: Settings, name: str
) -> None:
    settings.REGISTRY_BASE_URL = fake.url
    answer = api.get(manifest_path("a", name), expect=400)
    assert answer.codes == {"reference": "invalid-format"}
    assert fake.requests == []


def test_every_fault_of_a_query_is_told_at_once(api: Api) -> None:
    assert api.get(f"{PATH}/tags", expect=400).codes == {"repository": "required"}
    assert api.get(f"{PATH}/manifest", expect=400).codes == {
        "repository": "required",
        "reference": "required",
    }
    path = f"{PATH}/manifest?repository=%20&reference=v1&reference=v2&tag=x"
    assert api.get(path, expect=400).codes == {
        "repository": "blank",
        "reference": "repeated-parameter",
        "tag": "unknown-parameter",
    } | {"reference": "required"}
    assert api.get(tags_path("a" * 256), expect=400).codes == {"repository": "max-length"}
    assert api.get(tags_path("a\x00"), expect=400).codes.keys() == {"repository"}
    for route in ("", "/ping", "/extensions"):
        answer = api.get(f"{PATH}{route}?repository=a", expect=400)
        assert answer.codes == {"repository": "unknown-parameter"}


@pytest.mark.parametrize("route", ROUTES)
def test_a_registry_is_only_read(api: Api, route: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = api.request(method, PATH + route, {}, expect=405)
        assert "GET" in answer.headers["allow"]


def test_a_manifest_of_the_largest_size_is_shown(api: Api, repository: str) -> None:
    push_image(repository, "v1", OCI_MANIFEST)
    content = stored(repository, "v1").json()
    empty = len(json.dumps({**content, "annotations": {"pad": ""}}).encode())
    content["annotations"] = {"pad": "x" * (4 * 1024 * 1024 - empty)}
    put_manifest(repository, "big", OCI_MANIFEST, content)
    assert api.get(manifest_path(repository, "big")).body["manifest"] == content
